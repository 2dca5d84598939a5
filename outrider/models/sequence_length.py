"""Capacity of a loaded model, and the sequence lengths that a model allows."""

from __future__ import annotations

from typing import NamedTuple

from inference.errors import InvalidRequest

_DEFAULT = 2048


class Capacity(NamedTuple):
    """Room of a loaded model: texts, and tokens of each."""

    rows: int
    sequence_length: int  # prompt and output together
    spare: int  # slots a row beyond the sequence, which hold trees
    max_nodes: int  # of one call

    @property
    def slots(self) -> int:
        """Slots of a row."""
        return self.sequence_length + self.spare


def allowed_length(asked: int | None, name: str, limit: int, limited_by: str) -> int:
    """The sequence length, prompt and output together. Raises InvalidRequest beyond the limit.

    limited_by: the name of the limit, such as a field of config.json
    """
    if asked is None:
        return min(_DEFAULT, limit)
    if not 2 <= asked <= limit:
        raise InvalidRequest(f"--sequence_length {asked}: {name} takes 2 to {limit} ({limited_by})")
    return asked
