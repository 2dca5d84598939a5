"""The graphs that are compiled."""
