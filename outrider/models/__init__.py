"""Models on this machine: finding, loading and timing them."""
