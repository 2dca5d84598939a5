"""Models that may be used: those on this machine, published ones, pairs."""
