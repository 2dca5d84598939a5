"""Texts: their requests, their generation, and their records."""
