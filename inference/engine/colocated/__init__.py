"""Drafts beside the target."""
