"""Calls of functions: how a prompt lists them, and how a text is read."""
