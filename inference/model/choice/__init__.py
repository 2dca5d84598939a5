"""Sampling on the device: noise, truncation, and vocabularies divided among ranks."""
