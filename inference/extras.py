"""Optional packages (extras), checked before work begins so that it does not fail late."""

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
"""Extra -> the package whose presence shows that the extra is installed."""


def is_installed(package: str) -> bool:
    """Whether a package can be imported. The package is not imported."""
    return find_spec(package) is not None


def install(extra: str) -> str:
    """Return the command that installs an extra from a checkout (no package index has Outrider)."""
    return f"pip install '.[{extra}]'"


def require(extra: str, what: str, package: str | None = None, *, otherwise: str = "") -> None:
    """Raise MissingExtra, with the install line, unless an extra is installed.

    what: the feature that needs the extra
    package: the package to check instead of the one in PACKAGES
    otherwise: text to append to the error
    """
    name = package or PACKAGES[extra]
    if not is_installed(name):
        raise MissingExtra(f"{what} needs {name}: {install(extra)}{otherwise}")
