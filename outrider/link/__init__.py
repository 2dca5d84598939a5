"""A network link of chosen quality on this machine, for trials."""
