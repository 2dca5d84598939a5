"""Token trees, candidates, and their acceptance."""
