"""Every flag of the command line: groups.py and network.py declare them, roles.py says which role
has which, sources.py and parsing.py read them.
"""

from outrider.options.parsing import parse, parse_as
from outrider.options.roles import ROLES
from outrider.options.values import PRECISIONS, is_device

__all__ = ["PRECISIONS", "ROLES", "is_device", "parse", "parse_as"]
