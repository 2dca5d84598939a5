"""Models on this machine: how they are found, loaded, and timed."""
