"""Checks that the top-level packages that Outrider installs are its own.

`inference`, `compile` and `deploy` are names that other packages install, too. Of two packages in
one environment, pip lets the later one overwrite the files of the earlier one.
"""

from __future__ import annotations

from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

MARK = b"Outrider"
"""A word in the `__init__.py` of each package of ours."""


def check_top_level(*names: str) -> None:
    """Raise ImportError, which names the other package, unless top-level packages are ours."""
    for name in names:
        if not _is_ours(name):
            owners = {*packages_distributions().get(name, ())} - {"outrider"}
            culprit = ", ".join(sorted(owners)) or f"a folder `{name}` on the import path"
            raise ImportError(
                f"{culprit} replaces Outrider's package `{name}`: install Outrider again, in a"
                " virtual environment of its own"
            )


def _is_ours(name: str) -> bool:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        return False
    path = Path(spec.origin).resolve()
    return path.parents[1] == Path(__file__).resolve().parents[1] and MARK in path.read_bytes()
