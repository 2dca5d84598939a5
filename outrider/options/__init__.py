"""Flags of the roles: groups.py, draft_flags.py and network.py declare them, roles.py says which
role has which, parsing.py reads a command line.
"""
