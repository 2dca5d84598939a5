"""Artefacts: targets compiled ahead of time."""
