"""The measuring commands and their flags."""
