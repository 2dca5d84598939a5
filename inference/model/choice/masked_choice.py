"""The choice of a masked graph: the inputs that adjust its logits, and log-probabilities."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from inference.files.artifact import Bucket
from inference.model.choice.arithmetic import HOST, Arithmetic
from inference.model.choice.sampler import (
    OUT_OF_REACH,
    Sampling,
    Scores,
    choose_among,
    find_candidates,
    in_order,
)
from inference.model.choice.vocabulary import WHOLE_VOCABULARY, VocabularyShare, scores_of
from inference.sampling import MOST_LOGPROBS

_BITS = 32


class MaskInputs(NamedTuple):
    """A masked graph's inputs, by their names.

    Changes are a factor and a bias: the factor divides a logit above 0 and multiplies one below,
    and the bias is added after it. A factor of 0 means that an id is not listed.
    """

    allowed: Tensor  # [B, P, W] int32, a bit for each id, the lowest first
    text_ids: Tensor  # [B, R] int32, distinct, whose logits change at all nodes of a row
    text_changes: Tensor  # [B, R, 2] float32
    node_ids: Tensor  # [B, P, M] int32, distinct, whose changes are others at that node
    node_changes: Tensor  # [B, P, M, 2] float32
    asked: Tensor  # [B, P] int32, the id that is scored; below 0: the chosen one

    def adjusted(
        self, logits: Tensor, ids: Tensor, share: VocabularyShare, by: Arithmetic
    ) -> Tensor:  # [B, P, V]
        """Return the logits of a rank's share with all changes, less OUT_OF_REACH where an id is
        not allowed.

        ids: [V] int32, those of the share
        """
        text = by.place(self.text_ids[:, None], self.text_changes[:, None], ids)  # [B, 1, V]
        node = by.place(self.node_ids, self.node_changes, ids)
        factors, biases = (
            torch.where(node[0] > 0, own, shared) for own, shared in zip(node, text, strict=True)
        )
        factors = torch.where(factors > 0, factors, 1.0)
        logits = torch.where(logits > 0, logits / factors, logits * factors) + biases
        return torch.where(self._allows(ids, share), logits, logits - OUT_OF_REACH)

    def _allows(self, ids: Tensor, share: VocabularyShare) -> Tensor:  # [B, P, V] bool
        """Return which ids of the share are allowed.

        Single bits are compared with themselves: no number is shifted right, and none is widened.
        """
        words = self.allowed
        if share.ranks > 1:
            parts = words.view(*words.shape[:2], share.ranks, -1)
            words = parts.index_select(2, _rank(ids, share)).squeeze(2)
        steps = torch.arange(_BITS, dtype=torch.int32, device=words.device)
        bits = torch.bitwise_left_shift(torch.ones_like(steps), steps)
        return ((words[..., None] & bits) == bits).flatten(2)[..., : len(ids)]


def _rank(ids: Tensor, share: VocabularyShare) -> Tensor:  # [1] int32
    """Return the number of the rank whose share contains these ids."""
    size = len(ids)
    later = torch.arange(size, share.ranks * size, size, dtype=torch.int32, device=ids.device)
    return (ids[:1] >= later).float().sum(-1, keepdim=True).to(torch.int32)


def idle_masks(bucket: Bucket) -> dict[str, Tensor]:
    """Return the mask inputs of an idle call of a masked bucket, by parameter name."""
    rows, picks, changes, own = bucket.rows, bucket.picks, bucket.changes, bucket.nodes
    return MaskInputs(
        torch.full((rows, picks, bucket.words), -1, dtype=torch.int32),
        torch.zeros(rows, changes, dtype=torch.int32),
        torch.zeros(rows, changes, 2),
        torch.zeros(rows, picks, own, dtype=torch.int32),
        torch.zeros(rows, picks, own, 2),
        torch.full((rows, picks), -1, dtype=torch.int32),
    )._asdict()


class Scored(NamedTuple):
    """Choices, and the score() of a token at each node."""

    chosen: Tensor  # [B, P] int32
    scores: Scores

    def joined(self) -> Tensor:  # [B, P, 2 + 2 k] float32, which is exact for ids
        values, ids, likeliest = self.scores
        pair = torch.stack((self.chosen.float(), values), -1)
        return torch.cat((pair, ids.float(), likeliest), -1)

    @classmethod
    def parted(cls, joined: Tensor) -> Scored:
        """Return what joined() put together."""
        ids, likeliest = joined[..., 2:].chunk(2, -1)
        scores = Scores(joined[..., 1], ids.to(torch.int32), likeliest)
        return cls(joined[..., 0].to(torch.int32), scores)


def choose_scored(
    logits: Tensor,
    sampling: Sampling,
    drawn: Tensor,
    asked: Tensor,
    by: Arithmetic = HOST,
    share: VocabularyShare = WHOLE_VOCABULARY,
) -> Scored:
    """Choose tokens as choose_drawn() does, and score them and the MOST_LOGPROBS most likely.

    asked: [B, P] int32, tokens that are scored in place of the chosen ones; below 0: none
    """
    found = find_candidates(logits, sampling, by, drawn, share)
    chosen = choose_among(found, logits, sampling, drawn, share)
    ids = torch.where(asked < torch.zeros_like(asked), chosen, asked)
    values = scores_of(share, sampling.scaled(logits), ids) - found.log_mass[..., 0]
    most = (found.whole - found.log_mass)[..., :MOST_LOGPROBS]
    likeliest = in_order(most, found.ids[..., :MOST_LOGPROBS])
    return Scored(chosen, Scores(values, *likeliest))
