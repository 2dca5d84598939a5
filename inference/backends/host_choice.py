"""Choices and rankings of one row, made on the host from logits that a library computed."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from inference.backends import Ranked
from inference.model.sampler import (
    Sampling,
    choose_greedy,
    choose_open,
    choose_truncated,
    rank,
    rank_greedy,
)
from inference.sampling import SamplingParams
from inference.tree import IntArray

_HOST = torch.device("cpu")


def choose_of_row(logits: Tensor, params: SamplingParams, positions: IntArray) -> IntArray:  # [P]
    """The token chosen at each node.

    logits: [P, V] float32
    positions: [P], of the chosen tokens
    """
    if params.greedy:
        return np.asarray(choose_greedy(logits[None])[0].numpy(), dtype=np.int32)
    sampling, at = _sampling(params, positions)
    chosen = (
        choose_truncated(logits[None], sampling, at)
        if params.truncated
        else choose_open(logits[None], sampling, at, 1 + int(np.ptp(positions)))
    )
    return np.asarray(chosen[0].numpy(), dtype=np.int32)


def rank_of_row(logits: Tensor, params: SamplingParams, positions: IntArray, k: int) -> Ranked:
    """The k likeliest children of each node, with the arguments of choose_of_row()."""
    ids, scores = (
        rank_greedy(logits[None], k)
        if params.greedy
        else rank(logits[None], *_sampling(params, positions), k)
    )
    return Ranked(ids[0].numpy(), scores[0].numpy())


def _sampling(params: SamplingParams, positions: IntArray) -> tuple[Sampling, Tensor]:
    return Sampling.of([params], _HOST), torch.from_numpy(positions.astype(np.int32))[None]
