"""The target: loads models and serves them."""
