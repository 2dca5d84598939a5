"""Modules that are compiled to graphs."""
