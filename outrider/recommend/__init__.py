"""Verb recommend: which draft suits this machine and a target, by measuring."""
