"""compare_architectures.py: architectures side by side on the same prompts and seeds."""
