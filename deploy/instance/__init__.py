"""Instances of Outrider on EC2: kinds, prices, places, and those that run."""
