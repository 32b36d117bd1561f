"""The version of the installed distribution."""

from importlib import metadata


def version() -> str:
    """For example "0.1.0"."""
    return metadata.version("reelmesh")
