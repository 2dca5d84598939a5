"""Puts targets of Outrider on EC2: prices, start, status and end of instances."""
