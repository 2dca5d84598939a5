"""Role profiles: lists the times that are kept of models on this machine, or removes them."""

from __future__ import annotations

from pathlib import Path

from inference.cache_directory import cache_directory
from inference.command import say
from inference.errors import InvalidRequest
from inference.planner.profile_files import read_profile
from outrider.options.roles import ProfilesRole


def profiles(options: ProfilesRole) -> int:
    """Print a line for each kept profile; with --clear, remove them all."""
    directory = cache_directory("profiles")
    paths = sorted(directory.glob("*.json"))
    for path in paths:
        if options.clear:
            path.unlink(missing_ok=True)
        else:
            print(_described(path))
    done = f"profiles {'removed from' if options.clear else 'kept in'} {directory}: {len(paths)}"
    say(done)
    return 0


def _described(path: Path) -> str:
    try:
        subject, times = read_profile(path)
    except InvalidRequest as error:
        return f"{path.name}: spoilt, will be measured again ({error})"
    each = (f"{rows} x {nodes}: {times[rows, nodes] * 1e3:.3g}" for rows, nodes in sorted(times))
    return (
        f"{path.name}: model {subject.model[:8]}, {subject.dtype} on {subject.device}; "
        f"ms by rows x nodes: {', '.join(each)}"
    )
