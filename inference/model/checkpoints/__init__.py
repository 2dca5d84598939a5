"""Checkpoints: directories, their configuration and weights."""
