"""The version of Outrider."""

from importlib.metadata import PackageNotFoundError, version


def outrider_version() -> str:
    """The version of the installed package."""
    try:
        return version("outrider")
    except PackageNotFoundError:  # run from a checkout that was not installed
        return "checkout"
