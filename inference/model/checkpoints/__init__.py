"""Hugging Face checkpoints: download, configuration and weights."""
