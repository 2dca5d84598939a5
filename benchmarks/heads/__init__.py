"""Trials of heads beside the target, on a virtual clock."""
