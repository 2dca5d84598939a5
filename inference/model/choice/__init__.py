"""The choice of tokens on the device: noise, limits, ranks."""
