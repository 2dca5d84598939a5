"""How a machine computes what a choice needs: the noise, and the greatest scores.

There are two ways with one meaning. A graph or a call is given one of them. HOST is for CPUs and
GPUs. ENGINES is for NeuronCores, whose engines work on float32 and on rows of limited width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from inference.model.noise import noise, noise_in_limbs

WIDEST = 16_384
"""Scores of a row that the engines can search for the greatest at once."""

_LANES = 128
"""Rows that the engines search at once."""

_NARROW = 1024
"""Scores of a row that are not worth a further cut."""

LOWEST = -1e30
"""Less than any score. Finite, because accelerators fail on infinities."""


class Arithmetic(NamedTuple):
    """One way of computing a choice."""

    noise: Callable[[Tensor, Tensor, Tensor], Tensor]
    """(seed [..., 2], positions, ids) -> float32; see inference.model.noise.noise()."""

    top: Callable[[Tensor, int], tuple[Tensor, Tensor]]
    """(scores [..., N], k) -> the k greatest scores in descending order, and their int32 ids.

    Which of several equal scores are found, and in which order, is left open.
    """


def top(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:  # [..., N] -> [..., k], [..., k]
    """Return the k greatest scores of each row, in descending order, and their ids."""
    best, ids = torch.topk(scores, k, dim=-1)  # a list, not a named tuple, under torch_neuronx
    return best, ids.to(torch.int32)


def top_in_stages(
    scores: Tensor, k: int, widest: int = WIDEST
) -> tuple[Tensor, Tensor]:  # [..., N] -> [..., k], [..., k]
    """Compute top() from two-dimensional searches of at most `widest` scores each.

    Rows are cut into pieces, one for each lane while pieces are far wider than k, and the best of
    all pieces are searched again. widest: 2 k at least
    """
    shape, rows = scores.shape[:-1], scores.reshape(-1, scores.shape[-1])
    best, ids = _top_of_rows(rows, k, widest)
    return best.view(*shape, k), ids.view(*shape, k)


def _top_of_rows(rows: Tensor, k: int, widest: int) -> tuple[Tensor, Tensor]:
    count, width = rows.shape
    pieces = max(-(-width // widest), min(_LANES // count, width // max(4 * k, _NARROW)))
    if pieces <= 1:
        return top(rows, k)
    size = -(-width // pieces)
    if pieces * size > width:
        missing = torch.full_like(rows[:, : pieces * size - width], LOWEST)
        rows = torch.cat((rows, missing), 1)
    best, ids = top(rows.reshape(count * pieces, size), k)
    first = torch.arange(0, pieces * size, size, dtype=torch.int32, device=rows.device)
    ids = (ids.view(count, pieces, k) + first[:, None]).view(count, pieces * k)
    best, places = _top_of_rows(best.view(count, pieces * k), k, widest)
    return best, torch.gather(ids, 1, places)


HOST = Arithmetic(noise, top)
ENGINES = Arithmetic(noise_in_limbs, top_in_stages)
