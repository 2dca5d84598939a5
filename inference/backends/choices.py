"""Choices and rankings at the picked nodes of a call, by the cheapest function that serves all its
rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from inference.backends import Chosen, Ranked, Segment
from inference.model.sampler import (
    Sampling,
    choose_greedy,
    choose_mixed,
    choose_open,
    choose_truncated,
    rank,
    rank_greedy,
)


def choose_at(logits: Tensor, positions: Tensor, segments: Sequence[Segment]) -> list[Chosen]:
    """Return the token chosen at each picked node of each segment.

    logits: [B, P, V] float32
    positions: [B, P] int32, of the chosen tokens
    """
    if all(segment.params.greedy for segment in segments):
        chosen = choose_greedy(logits)
    elif all(segment.params.truncated for segment in segments):
        chosen = choose_truncated(logits, _sampling(logits, segments), positions)
    else:
        spread = max(int(np.ptp(segment.positions[segment.pick])) for segment in segments)
        some = any(segment.params.truncated for segment in segments)
        choose = choose_mixed if some else choose_open
        chosen = choose(logits, _sampling(logits, segments), positions, 1 + spread)
    table = chosen.cpu().numpy()
    return [Chosen(table[row, : len(segment.pick)]) for row, segment in enumerate(segments)]


def rank_at(logits: Tensor, positions: Tensor, segments: Sequence[Segment], k: int) -> list[Ranked]:
    """Return the k likeliest children of each picked node, with the arguments of choose_at()."""
    if all(segment.params.greedy for segment in segments):
        ids, scores = rank_greedy(logits, k)
    else:
        ids, scores = rank(logits, _sampling(logits, segments), positions, k)
    return ranked_rows(segments, ids.cpu().numpy(), scores.cpu().numpy())


def ranked_rows(
    segments: Sequence[Segment], ids: np.ndarray, scores: np.ndarray
) -> list[Ranked]:  # [B, P, k], [B, P, k]
    """Return each segment's part of what a call has ranked."""
    return [
        Ranked(ids[row, : len(segment.pick)], scores[row, : len(segment.pick)])
        for row, segment in enumerate(segments)
    ]


def chosen_positions(segment: Segment) -> Tensor:  # [1, p] int32
    """Return the positions of the tokens that are chosen for a row alone."""
    return torch.from_numpy(segment.positions[segment.pick].astype(np.int32) + 1)[None]


def _sampling(logits: Tensor, segments: Sequence[Segment]) -> Sampling:
    return Sampling.of([segment.params for segment in segments], logits.device)
