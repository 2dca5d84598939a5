"""A target: loads models, and serves them."""
