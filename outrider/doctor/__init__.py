"""Verb doctor: findings about this machine with remedies, and an exit code for scripts."""
