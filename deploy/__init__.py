"""Targets of Outrider on AWS EC2: prices, start, status and removal of instances."""
