"""Models to choose from: on this machine, published, and as pairs."""
