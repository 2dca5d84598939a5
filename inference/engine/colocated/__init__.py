"""Drafts that run on the target's device."""
