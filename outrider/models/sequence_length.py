"""How long a model's texts may be."""

from __future__ import annotations

from typing import NamedTuple

from inference.errors import InvalidRequest

_DEFAULT = 2048


class Capacity(NamedTuple):
    """How many texts a loaded model holds, how long, and how wide a call is."""

    rows: int
    sequence_length: int
    spare: int  # slots a row beyond the sequence, which hold trees
    max_nodes: int  # of one row in one call


def allowed_length(asked: int | None, name: str, limit: int, limited_by: str) -> int:
    """The sequence length, prompt and output together. Raises InvalidRequest beyond the limit.

    limited_by: what sets it, such as a field of config.json
    """
    if asked is None:
        return min(_DEFAULT, limit)
    if not 2 <= asked <= limit:
        raise InvalidRequest(f"--sequence_length {asked}: {name} takes 2 to {limit} ({limited_by})")
    return asked
