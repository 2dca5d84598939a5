"""Targets in processes of their own, under campaigns of hostile messages."""
