"""Flags of the roles: groups.py, draft_flags.py and network.py declare flags, roles.py lists those
of each role, and parsing.py reads a command line.
"""
