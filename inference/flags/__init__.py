"""Flags of every command: declared in groups, read from command line, environment and files."""
