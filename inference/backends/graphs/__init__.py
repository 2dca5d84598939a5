"""Targets compiled ahead of time, loaded from artefacts."""
