"""Vocabularies that are divided among ranks. Each rank computes the logits of its own ids; ranks
exchange a few scores and ids per node, never all logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


def _alone(tensor: Tensor) -> Tensor:
    return tensor


class VocabularyShare(NamedTuple):
    """The division of token ids among ranks: equal shares, the lowest ids on the first rank.

    Each rank counts ids from the first of its share.
    """

    ranks: int = 1
    # [B, ...] on each rank -> [ranks * B, ...] on all ranks, in rank order
    gather: Callable[[Tensor], Tensor] = _alone


WHOLE_VOCABULARY = VocabularyShare()
"""A single rank with all ids."""


class Leading(NamedTuple):
    """The greatest scores of each node in descending order, and the mass of all scores. The
    selection and order of equal scores are undefined.
    """

    scores: Tensor  # [B, P, k] float32
    ids: Tensor  # [B, P, k] int32
    noise: Tensor | None  # [B, P, k] of these ids, if requested
    mass: Tensor  # [B, P, 1] sum of exp(score - greatest score) over all ids

    def first(self, count: int) -> Leading:
        """Return the first `count` scores, with the same mass."""
        noise = None if self.noise is None else self.noise[..., :count]
        return Leading(self.scores[..., :count], self.ids[..., :count], noise, self.mass)


Top = Callable[[Tensor, int], tuple[Tensor, Tensor]]
"""(scores [..., N], k) -> the k greatest scores in descending order, and their int32 ids."""


def best_ids(
    share: VocabularyShare, *tables: Tensor
) -> list[Tensor]:  # each [B, P, V] -> [B, P] int32
    """Return the id with the best score over all ranks for each table; on ties, the lowest id.

    Relies on argmax to return the first maximum, as documented.
    """
    ids = [scores.argmax(-1).to(torch.int32) for scores in tables]
    if share.ranks == 1:
        return ids
    size = tables[0].shape[-1]
    best = [scores.amax(-1, keepdim=True) for scores in tables]
    scores, places = _exchange(share, size, best, [table[..., None] for table in ids])
    return [lowest_best(*pair) for pair in zip(scores, places, strict=True)]


def lowest_best(scores: Tensor, ids: Tensor) -> Tensor:  # [..., N], [..., N] -> [...]
    """Return the id with the best score, the lowest id on ties."""
    best = scores.amax(-1, keepdim=True)
    return torch.where(scores == best, ids, torch.iinfo(torch.int32).max).amin(-1)


def likeliest(
    share: VocabularyShare, scores: Tensor, k: int, top: Top
) -> tuple[Tensor, Tensor]:  # [B, P, V] -> [B, P, k], [B, P, k]
    """Return the k greatest scores over all ranks, and their ids."""
    best, ids = top(scores, min(k, scores.shape[-1]))
    if share.ranks == 1:
        return best, ids
    [gathered], [ids] = _exchange(share, scores.shape[-1], [best], [ids])
    best, places = top(gathered, k)
    return best, torch.gather(ids, -1, places)


def scores_of(
    share: VocabularyShare, scores: Tensor, ids: Tensor
) -> Tensor:  # [B, P, V], [B, P] -> [B, P]
    """Return the scores of ids that may be on any rank."""
    places = ids[..., None]
    if share.ranks == 1:
        return torch.gather(scores, -1, places)[..., 0]
    size = scores.shape[-1]
    later = torch.arange(size, share.ranks * size, size, dtype=torch.float32, device=ids.device)
    owner = (places.float() >= later).float().sum(-1, keepdim=True)  # its rank
    mine = torch.gather(scores, -1, (places.float() - owner * size).to(torch.int32))
    gathered = share.gather(mine).view(share.ranks, *mine.shape).permute(1, 2, 0, 3).flatten(2)
    return torch.gather(gathered, -1, owner.to(torch.int32))[..., 0]


def leading(
    share: VocabularyShare, scores: Tensor, noise: Tensor | None, k: int, top: Top
) -> Leading:
    """Return the k greatest scores over all ranks. The last digits of the mass depend on the number
    of ranks, since each rank sums its own ids first.

    scores, noise: [B, P, V] for the ids of this rank
    """
    mine = _leading_here(scores, noise, min(k, scores.shape[-1]), top)
    if share.ranks == 1:
        return mine
    numbers = [mine.scores, mine.scores[..., :1], mine.mass]
    numbers += [] if mine.noise is None else [mine.noise]
    (gathered, firsts, masses, *noises), [ids] = _exchange(
        share, scores.shape[-1], numbers, [mine.ids]
    )
    best, places = top(gathered, k)
    mass = (masses * torch.exp(firsts - best[..., :1])).sum(-1, keepdim=True)
    ids, *noises = (torch.gather(tensor, -1, places) for tensor in (ids, *noises))
    return Leading(best, ids, noises[0] if noises else None, mass)


def _leading_here(scores: Tensor, noise: Tensor | None, k: int, top: Top) -> Leading:
    best, ids = top(scores, k)
    mass = torch.exp(scores - best[..., :1]).sum(-1, keepdim=True)
    return Leading(best, ids, None if noise is None else torch.gather(noise, -1, ids), mass)


def _exchange(
    share: VocabularyShare, size: int, numbers: Sequence[Tensor], ids: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Gather numbers and ids from all ranks, each [B, P, n] -> [B, P, ranks * n], in one collective
    of float32, which is exact for ids.

    size: number of ids per rank
    """
    tensors = [*numbers, *(tensor.to(torch.float32) for tensor in ids)]
    sent, sizes = torch.cat(tensors, -1), [tensor.shape[-1] for tensor in tensors]
    gathered = share.gather(sent).view(share.ranks, *sent.shape).permute(1, 2, 0, 3)
    received = torch.split(gathered, sizes, -1)
    first = torch.arange(0, share.ranks * size, size, dtype=torch.float32, device=sent.device)
    raised = [(tensor + first[:, None]).to(torch.int32) for tensor in received[len(numbers) :]]
    return (
        [tensor.flatten(2) for tensor in received[: len(numbers)]],
        [tensor.flatten(2) for tensor in raised],
    )
