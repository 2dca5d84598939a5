"""Flags of all commands, declared in groups and read from command line, environment and files."""
