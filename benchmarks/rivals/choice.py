"""Which arms there are on each kind of files, and which of them are played."""

from __future__ import annotations

from benchmarks.rivals import library, llama_server, ours
from benchmarks.rivals.report import Group
from inference.errors import InvalidRequest

OURS_GGUF = ours.PLAIN + ours.GGUF
ACROSS = f"{ours.HYBRID} gRPC"
"""The arm whose target is in a process of its own."""

SAFETENSORS = (*library.HELPS, ours.PLAIN, f"{ours.PLAIN} copies", ours.HYBRID, ACROSS)
GGUF = (*llama_server.ARMS, OURS_GGUF, f"{OURS_GGUF} copies", f"{OURS_GGUF} hybrid")


def plain_of(arm: str) -> str:
    """The name of the arm that drafts nothing with the same engine."""
    plains = (OURS_GGUF, ours.PLAIN, library.PLAIN, llama_server.PLAIN)
    return next(plain for plain in plains if arm.startswith(plain))


def groups_of(*, safetensors: bool, gguf: bool) -> list[Group]:
    """All arms on the files that are there."""
    groups = []
    if safetensors:
        plains = {arm: plain_of(arm) for arm in SAFETENSORS}
        groups.append(Group("Safetensors", ours.HYBRID, plains))
    if gguf:
        groups.append(Group("GGUF files", GGUF[-1], {arm: plain_of(arm) for arm in GGUF}))
    return groups


def chosen(groups: list[Group], names: str | None) -> list[Group]:
    """The arms of these names, with commas between them; None chooses all. Raises InvalidRequest
    for an unknown one, for one without its plain arm, and where there is none.
    """
    known = [arm for group in groups for arm in group.plains]
    wanted = names.split(",") if names else known
    if not known:
        raise InvalidRequest("no models: --safetensors or --gguf names them")
    if unknown := [name for name in wanted if name not in known]:
        raise InvalidRequest(f"--arms: no arm {unknown[0]!r}; there are {', '.join(known)}")
    if alone := [name for name in wanted if plain_of(name) not in wanted]:
        raise InvalidRequest(f"--arms: {alone[0]} is measured against {plain_of(alone[0])}: add it")
    kept = [
        Group(one.title, one.hybrid, {arm: plain_of(arm) for arm in one.plains if arm in wanted})
        for one in groups
    ]
    return [group for group in kept if group.plains]
