"""Chooses and ranks tokens of a row on the host, from a library's logits. Only a choice at a
temperature above 0 needs torch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inference.backends import Chosen, Ranked, Segment
from inference.sampling import CANDIDATES, threefry2x32
from inference.tree.token_tree import IntArray

Floats = NDArray[np.float32]

_OUT_OF_REACH = np.float32(1e9)
"""Subtracted from the scores of excluded tokens."""

_OCTETS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_EXCLUDED = (_OCTETS - np.float32(1)) * _OUT_OF_REACH
"""[256, 8] changes to the logits of eight ids, by the byte whose bits allow or exclude them."""


def choose_of_row(logits: Floats, segment: Segment) -> Chosen:
    """Choose a token at each picked node.

    logits: [p, V] of the picked nodes
    """
    if segment.params.greedy and segment.scoring is None:
        logits = _by_rule(logits, segment)
        return Chosen(np.asarray(logits.argmax(-1), dtype=np.int32))
    import torch

    from inference.backends.eager import choose_at, chosen_positions

    return choose_at(torch.from_numpy(logits[None]), chosen_positions(segment), [segment])[0]


def rank_of_row(logits: Floats, segment: Segment, k: int) -> Ranked:
    """Return the k most likely children of each picked node. Arguments: see choose_of_row(). The
    result equals that of rank() in inference/model/choice/sampler.py except for the last digits of
    the scores.
    """
    params, positions = segment.params, segment.positions[segment.pick] + 1
    scores = _by_rule(logits, segment) / np.float32(params.temperature or 1)
    best = scores.max(-1, keepdims=True)
    log_mass = best + np.log(np.exp(scores - best).sum(-1, keepdims=True))
    if params.greedy:
        ids, scores = _greatest(scores, k)
        return Ranked(ids, scores - log_mass)
    ids, scores = _greatest(scores, CANDIDATES + 1)
    beyond = scores[:, CANDIDATES:].max(-1, initial=-np.inf, keepdims=True)
    ids, scores = ids[:, :CANDIDATES], scores[:, :CANDIDATES]
    mass = np.exp(scores - log_mass)
    mask = np.arange(ids.shape[-1]) < (params.top_k or CANDIDATES)
    upto = mass.cumsum(-1)
    top_k_mass = np.where(mask, upto, 0).max(-1, keepdims=True) if params.top_k else np.float32(1)
    mask = mask & (upto - mass < top_k_mass * np.float32(params.top_p if params.top_p < 1 else 2))
    mask = mask & (np.exp(scores - best) >= params.min_p)
    lowest = np.where(mask, scores, best).min(-1, keepdims=True)
    mask = (scores >= lowest) & (scores > beyond)
    drawn = np.where(mask, scores, scores - _OUT_OF_REACH) + _noise(params.seed, positions, ids)
    order = np.lexsort((ids, -drawn))[:, :k]
    drawn = np.take_along_axis(drawn - log_mass, order, -1)
    return Ranked(np.take_along_axis(ids, order, -1), drawn)


def _by_rule(logits: Floats, segment: Segment) -> Floats:  # [p, V]
    """Return a copy of the logits after adjust() and exclude(); see model/choice/sampler.py."""
    if segment.rule is None:
        return logits
    logits, rule = logits.copy(), segment.rule()
    nodes, ids, factors, biases = rule.changes(logits.shape[-1])
    values = logits[nodes, ids]
    logits[nodes, ids] = np.where(values > 0, values / factors, values * factors) + biases
    if rule.allowed is not None:
        excluded = _EXCLUDED[rule.allowed.view(np.uint8)]  # [p, octets, 8]
        logits += excluded.reshape(len(logits), -1)[:, : logits.shape[-1]]
    return logits


def _greatest(scores: Floats, count: int) -> tuple[IntArray, Floats]:  # -> [P, n], [P, n]
    """Return ids and values of the `count` greatest scores [P, V], greatest first, then by id."""
    count = min(count, scores.shape[-1])
    ids = np.argpartition(scores, -count)[:, -count:].astype(np.int32)
    greatest = np.take_along_axis(scores, ids, -1)
    best_first = np.lexsort((ids, -greatest))
    return np.take_along_axis(ids, best_first, -1), np.take_along_axis(greatest, best_first, -1)


def _noise(seed: int, positions: IntArray, ids: IntArray) -> Floats:  # [P, n]
    """Return the Gumbel noise for the ids of each node, as noise() of the sampling contract."""
    words = np.array([seed & 0xFFFFFFFF, seed >> 32], dtype=np.uint32).view(np.int32)
    key, counter = (words[:1, None], words[1:, None]), (ids, positions[:, None].astype(np.int32))
    upper = (threefry2x32(key, counter, np.left_shift, np.right_shift)[0] >> 9) & 0x7FFFFF
    uniform = (upper.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)
    return np.asarray(-np.log(-np.log(uniform)), dtype=np.float32)
