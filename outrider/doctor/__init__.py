"""Verb doctor: findings about this machine, each with its remedy, and an exit code for scripts."""
