"""Targets of Outrider on AWS EC2: prices of instances, start, status and removal."""
