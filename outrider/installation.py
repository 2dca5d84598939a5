"""The installed package: Outrider's version, and a check that no other package has replaced its
top-level packages.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec
from pathlib import Path


def outrider_version() -> str:
    """Return the version of the installed package, or `checkout`."""
    try:
        return version("outrider")
    except PackageNotFoundError:  # run from a checkout that was not installed
        return "checkout"


MARK = b"Outrider"
"""A word that the `__init__.py` of each of Outrider's packages contains."""


def check_top_level(*names: str) -> None:
    """Raise ImportError, naming the other package, unless these packages are Outrider's."""
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
