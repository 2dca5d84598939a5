"""Records of texts with counts that a test states by name."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from inference.text_log import DecodeStatistics, Traffic
from outrider.text.completion import Completion

_TRAFFIC, _ACCEPTED = ({one.name for one in fields(kind)} for kind in (Traffic, DecodeStatistics))


def changed(done: Completion, **changes: Any) -> Completion:
    """The record with other values, those of its Traffic and DecodeStatistics by name."""
    traffic = {name: changes.pop(name) for name in _TRAFFIC & changes.keys()}
    accepted = {name: changes.pop(name) for name in _ACCEPTED & changes.keys()}
    candidates = changes.pop("candidates", None)
    counts = replace(done.traffic, **traffic)
    if candidates is not None:
        counts = replace(counts, nodes=counts.forwards + candidates)
    counted = replace(done.accepted, **accepted)
    return replace(done, traffic=counts, accepted=counted, **changes)


def completion(tokens: int, **values: Any) -> Completion:
    """A text of so many tokens. Prompt 0 has three."""
    return changed(Completion(0, "p", 0, 3, token_ids=list(range(tokens))), **values)
