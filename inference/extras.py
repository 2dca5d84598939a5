"""Packages of extras. They are checked before work begins, so that it does not fail late."""

from __future__ import annotations

from importlib.util import find_spec

from inference.errors import MissingExtra

PACKAGES = {
    "torch": "torch",
    "gguf": "llama_cpp",
    "aws": "boto3",
    "plots": "matplotlib",
    "ray": "ray",
    "xml": "defusedxml",
}
"""The package of each extra that is checked."""


def is_installed(package: str) -> bool:
    """Whether a package can be imported; does not import it."""
    return find_spec(package) is not None


def install(extra: str) -> str:
    """The command that installs an extra, in a checkout: Outrider is on no package index."""
    return f"pip install '.[{extra}]'"


def require(extra: str, what: str, package: str | None = None, *, otherwise: str = "") -> None:
    """Raise MissingExtra, with the install line, unless an extra is installed.

    what: what needs it
    package: the package to check instead of that of PACKAGES
    otherwise: end of the line
    """
    name = package or PACKAGES[extra]
    if not is_installed(name):
        raise MissingExtra(f"{what} needs {name}: {install(extra)}{otherwise}")
