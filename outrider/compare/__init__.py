"""`outrider compare`: architectures side by side on the same prompts and seeds."""
