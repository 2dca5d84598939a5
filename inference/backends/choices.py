"""Chooses and ranks tokens at the picked nodes, by the cheapest function that suits all rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from inference.backends import Chosen, LogProbs, Ranked, Segment
from inference.model.choice.sampler import (
    Sampling,
    adjust,
    choose_greedy,
    choose_mixed,
    choose_open,
    choose_truncated,
    exclude,
    rank,
    rank_greedy,
    score,
)


def choose_at(logits: Tensor, positions: Tensor, segments: Sequence[Segment]) -> list[Chosen]:
    """Choose a token at each picked node of each segment.

    logits: [B, P, V] float32; overwritten if a segment has a rule
    positions: [B, P] int32, positions of the tokens to choose
    """
    _apply_rules(logits, segments)
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
    return [
        Chosen(tokens := table[row, : len(segment.pick)], _log_probs(logits[row], segment, tokens))
        for row, segment in enumerate(segments)
    ]


def rank_at(logits: Tensor, positions: Tensor, segments: Sequence[Segment], k: int) -> list[Ranked]:
    """Return the k most likely children of each picked node. Arguments: see choose_at()."""
    _apply_rules(logits, segments)
    if all(segment.params.greedy for segment in segments):
        ids, scores = rank_greedy(logits, k)
    else:
        ids, scores = rank(logits, _sampling(logits, segments), positions, k)
    return ranked_rows(segments, ids.cpu().numpy(), scores.cpu().numpy())


def ranked_rows(
    segments: Sequence[Segment], ids: np.ndarray, scores: np.ndarray
) -> list[Ranked]:  # [B, P, k], [B, P, k]
    """Split the rankings of a batch by segment."""
    return [
        Ranked(ids[row, : len(segment.pick)], scores[row, : len(segment.pick)])
        for row, segment in enumerate(segments)
    ]


def chosen_positions(segment: Segment) -> Tensor:  # [1, p] int32
    """Return the positions of a segment's tokens to choose, as a batch of one row."""
    return torch.from_numpy(segment.positions[segment.pick].astype(np.int32) + 1)[None]


def _apply_rules(logits: Tensor, segments: Sequence[Segment]) -> None:
    for row, segment in enumerate(segments):
        if segment.rule is not None:
            scores, rule = logits[row, : len(segment.pick)], segment.rule()
            adjust(scores, *(_on(logits, array) for array in rule.changes(logits.shape[-1])))
            if rule.allowed is not None:
                exclude(scores, _on(logits, rule.allowed))


def _log_probs(logits: Tensor, segment: Segment, chosen: np.ndarray) -> LogProbs | None:
    """Return a segment's log-probabilities, if requested. logits: [P, V]; chosen: [p]"""
    if segment.scoring is None:
        return None
    likeliest, of = segment.scoring
    rows, tokens = logits[None, : len(chosen)], _on(logits, chosen if of is None else of)
    values = score(rows, _sampling(rows, [segment]), tokens[None], likeliest)
    return LogProbs(*(tensor[0].cpu().numpy() for tensor in values))


def _on(logits: Tensor, array: np.ndarray) -> Tensor:
    return torch.from_numpy(array).to(logits.device)


def _sampling(logits: Tensor, segments: Sequence[Segment]) -> Sampling:
    return Sampling.of([segment.params for segment in segments], logits.device)
