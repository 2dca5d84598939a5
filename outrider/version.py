"""Outrider's version."""

from importlib.metadata import PackageNotFoundError, version


def outrider_version() -> str:
    """Return the version of the installed package, or `checkout`."""
    try:
        return version("outrider")
    except PackageNotFoundError:  # run from a checkout that was not installed
        return "checkout"
