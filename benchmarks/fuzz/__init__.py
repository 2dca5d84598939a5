"""A campaign of hostile messages against a target: python -m benchmarks.fuzz."""
