"""Verb doctor: findings about this machine, each with its remedy, and an exit code for scripts.

A check is a function that yields findings. On a laptop they are of the draft, the target and the
link, on a target's host of everything that a target needs there.
"""
