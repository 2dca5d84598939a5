"""Flags of the roles: groups.py, draft_flags.py and network.py declare flags, roles.py combines
them, and commands.py reads a command line.
"""
