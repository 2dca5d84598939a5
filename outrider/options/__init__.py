"""Flags of the roles: groups.py, drafting.py and network.py declare them, roles.py says which role
has which, parsing.py reads a command line.
"""

from outrider.options.groups import PRECISIONS, is_device
from outrider.options.parsing import parse
from outrider.options.roles import ROLES

__all__ = ["PRECISIONS", "ROLES", "is_device", "parse"]
