"""Targets in processes of their own: under storms, and under campaigns of hostile messages."""
