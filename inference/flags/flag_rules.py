"""Rules of what flags mean together: which exclude each other, and which need another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

Known = Mapping[str, tuple[Any, Any]]
"""Value and default of each flag, by its name."""


class FlagRule(NamedTuple):
    """A rule of what some flags exclude or need. `why` ends the error.

    Conditions are separated by spaces: `gamma` holds where the flag has another value than its
    default, `pace=wait` and `device=neuron*` where its value is such a one.
    """

    flags: str  # any of these conditions brings the rule to bear
    excludes: str = ""  # none of these may hold
    needs: str = ""  # one of these must hold
    why: str = ""

    def check(self, known: Known) -> None:
        """Raise ValueError where the values break the rule. A rule of flags that are not among the
        known ones says nothing.
        """
        because = f": {self.why}" if self.why else ""
        for given in _holding(self.flags, known):
            for other in _holding(self.excludes, known):
                if other != given:
                    raise ValueError(f"{given} does not go with {other}{because}: give one of them")
            wanted = [one for one in self.needs.split() if one.partition("=")[0] in known]
            if wanted and not any(_holding(self.needs, known)):
                named = " or ".join(_spelt(*one.partition("=")[::2]) for one in wanted)
                raise ValueError(f"{given} needs {named}{because}")


def _holding(conditions: str, known: Known) -> Iterator[str]:
    """The conditions that hold, as a user writes their flags."""
    for condition in conditions.split():
        name, equals, pattern = condition.partition("=")
        value, default = known.get(name, (None, None))
        if fnmatchcase(str(value), pattern) if equals else value != default:
            yield _spelt(name, value if equals else "")


def _spelt(name: str, value: object) -> str:
    return f"--{name} {str(value).strip('*')}" if value else f"--{name}"
