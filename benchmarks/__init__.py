"""Measurements, each a script: figures in README and docs name the one that made them."""
