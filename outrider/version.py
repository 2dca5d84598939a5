"""Which Outrider this is."""

from importlib.metadata import PackageNotFoundError, version


def outrider_version() -> str:
    """Of the installed package."""
    try:
        return version("outrider")
    except PackageNotFoundError:  # run from a checkout that was not installed
        return "checkout"
