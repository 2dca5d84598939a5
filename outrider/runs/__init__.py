"""`outrider runs FILE`: several runs and sweeps of a file, each with its result."""
