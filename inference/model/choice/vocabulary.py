"""A rank's share of the vocabulary, and the exchange of scores among ranks.

A head that is divided among ranks gives each rank the logits of its own ids. Ranks exchange a few
scores and ids for each node, never all logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


def _alone(part: Tensor) -> Tensor:
    return part


class VocabularyShare(NamedTuple):
    """One rank's part of the ids. All parts have one size, and the first rank has the lowest ids.

    On a rank, ids are counted from the first of its own.
    """

    ranks: int = 1
    # [B, ...] of each rank -> [ranks * B, ...] on every rank, in order of rank
    gather: Callable[[Tensor], Tensor] = _alone


WHOLE_VOCABULARY = VocabularyShare()
"""Share of a rank that has all ids."""


class Leading(NamedTuple):
    """The greatest scores of each node, in descending order, and the mass of all scores.

    Which of several equal scores are found, and in which order, is left open.
    """

    scores: Tensor  # [B, P, k] float32
    ids: Tensor  # [B, P, k] int32
    noise: Tensor | None  # [B, P, k] of these ids, where it was asked for
    mass: Tensor  # [B, P, 1] sum over all ids of exp(score - greatest score)

    def first(self, count: int) -> Leading:
        """Return the best of these; the mass stays that of all scores."""
        noise = None if self.noise is None else self.noise[..., :count]
        return Leading(self.scores[..., :count], self.ids[..., :count], noise, self.mass)


Top = Callable[[Tensor, int], tuple[Tensor, Tensor]]
"""(scores [..., N], k) -> the k greatest scores in descending order, and their int32 ids."""


def best_ids(
    share: VocabularyShare, *tables: Tensor
) -> list[Tensor]:  # each [B, P, V] -> [B, P] int32
    """Return the id with the best score of all ranks in each table, and of equal ones the lowest.

    argmax is documented to return the first maximum.
    """
    ids = [scores.argmax(-1).to(torch.int32) for scores in tables]
    if share.ranks == 1:
        return ids
    size = tables[0].shape[-1]
    best = [scores.amax(-1, keepdim=True) for scores in tables]
    scores, places = _exchange(share, size, best, [each[..., None] for each in ids])
    return [lowest_best(*pair) for pair in zip(scores, places, strict=True)]


def lowest_best(scores: Tensor, ids: Tensor) -> Tensor:  # [..., N], [..., N] -> [...]
    """Return the id with the best score, the lowest id on ties."""
    best = scores.amax(-1, keepdim=True)
    return torch.where(scores == best, ids, torch.iinfo(torch.int32).max).amin(-1)


def likeliest(
    share: VocabularyShare, scores: Tensor, k: int, top: Top
) -> tuple[Tensor, Tensor]:  # [B, P, V] -> [B, P, k], [B, P, k]
    """Return the k leading scores of all ranks, and their ids."""
    best, ids = top(scores, min(k, scores.shape[-1]))
    if share.ranks == 1:
        return best, ids
    [every], [ids] = _exchange(share, scores.shape[-1], [best], [ids])
    best, places = top(every, k)
    return best, torch.gather(ids, -1, places)


def scores_of(
    share: VocabularyShare, scores: Tensor, ids: Tensor
) -> Tensor:  # [B, P, V], [B, P] -> [B, P]
    """Return the scores of these ids, each of which lies in one rank's share."""
    places = ids[..., None]
    if share.ranks == 1:
        return torch.gather(scores, -1, places)[..., 0]
    size = scores.shape[-1]
    later = torch.arange(size, share.ranks * size, size, dtype=torch.float32, device=ids.device)
    owner = (places.float() >= later).float().sum(-1, keepdim=True)  # its rank
    mine = torch.gather(scores, -1, (places.float() - owner * size).to(torch.int32))
    every = share.gather(mine).view(share.ranks, *mine.shape).permute(1, 2, 0, 3).flatten(2)
    return torch.gather(every, -1, owner.to(torch.int32))[..., 0]


def leading(
    share: VocabularyShare, scores: Tensor, noise: Tensor | None, k: int, top: Top
) -> Leading:
    """Return the k leading scores of all ranks.

    The mass is summed on each rank first, so its last digits depend on the number of ranks.

    scores, noise: [B, P, V] of this rank's ids
    """
    mine = _leading_here(scores, noise, min(k, scores.shape[-1]), top)
    if share.ranks == 1:
        return mine
    numbers = [mine.scores, mine.scores[..., :1], mine.mass]
    numbers += [] if mine.noise is None else [mine.noise]
    (every, firsts, masses, *noises), [ids] = _exchange(
        share, scores.shape[-1], numbers, [mine.ids]
    )
    best, places = top(every, k)
    mass = (masses * torch.exp(firsts - best[..., :1])).sum(-1, keepdim=True)
    ids, *noises = (torch.gather(part, -1, places) for part in (ids, *noises))
    return Leading(best, ids, noises[0] if noises else None, mass)


def _leading_here(scores: Tensor, noise: Tensor | None, k: int, top: Top) -> Leading:
    best, ids = top(scores, k)
    mass = torch.exp(scores - best[..., :1]).sum(-1, keepdim=True)
    return Leading(best, ids, None if noise is None else torch.gather(noise, -1, ids), mass)


def _exchange(
    share: VocabularyShare, size: int, numbers: Sequence[Tensor], ids: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Return every rank's numbers and ids, each [B, P, n] -> [B, P, ranks * n], in one collective.

    All travel as float32, which is exact for ids.

    size: ids of a rank
    """
    parts = [*numbers, *(part.to(torch.float32) for part in ids)]
    sent, sizes = torch.cat(parts, -1), [part.shape[-1] for part in parts]
    every = share.gather(sent).view(share.ranks, *sent.shape).permute(1, 2, 0, 3)
    received = torch.split(every, sizes, -1)
    first = torch.arange(0, share.ranks * size, size, dtype=torch.float32, device=sent.device)
    raised = [(part + first[:, None]).to(torch.int32) for part in received[len(numbers) :]]
    return (
        [part.flatten(2) for part in received[: len(numbers)]],
        [part.flatten(2) for part in raised],
    )
