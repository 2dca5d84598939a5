"""Sampling in compiled graphs: inputs that adjust logits, log-probabilities, and noise as state.

Graphs store the noise of the next positions, which a small separate graph computes while the target
is idle. Each cache row has a window of WINDOW positions; position p is at place p mod WINDOW.
Values equal those of noise() in float32, since 16 bits would sometimes change choices. With 128,256
ids on two ranks, a row takes 8 MB per rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
from inference.sampling import MAX_LOGPROBS, SamplingParams

_BITS = 32


class MaskInputs(NamedTuple):
    """The inputs of a masked graph in addition to the sampling inputs.

    A change is a factor and a bias: the factor divides positive logits and multiplies negative
    ones, then the bias is added. A factor of 0 means no change.
    """

    allowed: Tensor  # [B, P, W] int32, a bit for each id, the lowest first
    text_ids: Tensor  # [B, R] int32, distinct, whose logits change at all nodes of a row
    text_changes: Tensor  # [B, R, 2] float32
    node_ids: Tensor  # [B, P, M] int32, distinct, whose changes override the row's at a node
    node_changes: Tensor  # [B, P, M, 2] float32
    asked: Tensor  # [B, P] int32, the id to score; negative: the chosen id

    def adjusted(
        self, logits: Tensor, ids: Tensor, share: VocabularyShare, by: Arithmetic
    ) -> Tensor:  # [B, P, V]
        """Apply all changes to the logits of a rank's share, and subtract OUT_OF_REACH from ids
        that are not allowed.

        ids: [V] int32, the ids of the share
        """
        text = by.place(self.text_ids[:, None], self.text_changes[:, None], ids)  # [B, 1, V]
        node = by.place(self.node_ids, self.node_changes, ids)
        factors, biases = (torch.where(node[0] > 0, *pair) for pair in zip(node, text, strict=True))
        factors = torch.where(factors > 0, factors, 1.0)
        logits = torch.where(logits > 0, logits / factors, logits * factors) + biases
        return torch.where(self._allows(ids, share), logits, logits - OUT_OF_REACH)

    def _allows(self, ids: Tensor, share: VocabularyShare) -> Tensor:  # [B, P, V] bool
        """Return which ids of the share are allowed, by comparing single bits: right shifts and
        wider types are avoided.
        """
        words = self.allowed
        if share.ranks > 1:
            by_rank = words.view(*words.shape[:2], share.ranks, -1)
            words = by_rank.index_select(2, _rank(ids, share)).squeeze(2)
        steps = torch.arange(_BITS, dtype=torch.int32, device=words.device)
        bits = torch.bitwise_left_shift(torch.ones_like(steps), steps)
        return ((words[..., None] & bits) == bits).flatten(2)[..., : len(ids)]


def _rank(ids: Tensor, share: VocabularyShare) -> Tensor:  # [1] int32
    size = len(ids)
    later = torch.arange(size, share.ranks * size, size, dtype=torch.int32, device=ids.device)
    return (ids[:1] >= later).float().sum(-1, keepdim=True).to(torch.int32)


def idle_masks(bucket: Bucket) -> dict[str, Tensor]:
    """Return mask inputs without effect for a bucket, by parameter name."""
    rows, picks, changes, nodes = bucket.rows, bucket.picks, bucket.changes, bucket.nodes
    return MaskInputs(
        torch.full((rows, picks, bucket.words), -1, dtype=torch.int32),
        torch.zeros(rows, changes, dtype=torch.int32),
        torch.zeros(rows, changes, 2),
        torch.zeros(rows, picks, nodes, dtype=torch.int32),
        torch.zeros(rows, picks, nodes, 2),
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
        """Split the result of joined()."""
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
    """Choose tokens like choose_drawn(), and score them and the MAX_LOGPROBS most likely tokens.

    asked: [B, P] int32, tokens to score instead of the chosen ones; negative: none
    """
    candidates = find_candidates(logits, sampling, by, drawn, share)
    chosen = choose_among(candidates, logits, sampling, drawn, share)
    ids = torch.where(asked < torch.zeros_like(asked), chosen, asked)
    values = scores_of(share, sampling.scaled(logits), ids) - candidates.log_mass[..., 0]
    log_probs = (candidates.raw - candidates.log_mass)[..., :MAX_LOGPROBS]
    likeliest = in_order(log_probs, candidates.ids[..., :MAX_LOGPROBS])
    return Scored(chosen, Scores(values, *likeliest))


WINDOW = 32
"""Positions in the window of a row: a power of two."""

FILLED = 16
"""Number of places that one call fills, in any rows; fewer are padded."""


class NoisePlace(NamedTuple):
    """Identifies the noise for a position of a cache row."""

    row: int
    position: int  # position of the token to choose
    seed: int


def empty_window(rows: int, ids: int, device: torch.device | str = "cpu") -> Tensor:
    """Return zeroed windows [rows * WINDOW, ids of a rank] float32."""
    return torch.zeros(rows * WINDOW, ids, device=device)


def fill_inputs(places: Sequence[NoisePlace]) -> dict[str, Tensor]:
    """Return the inputs, by name, with which a stateful graph fills 1 to FILLED places."""
    padded = [*places, *[places[0]] * (FILLED - len(places))]
    params = [SamplingParams(1.0, seed=place.seed) for place in padded]
    return {
        "rows": torch.tensor([place.row for place in padded], dtype=torch.int32),
        "after": torch.tensor([[place.position] for place in padded], dtype=torch.int32),
        "seed": Sampling.of(params, torch.device("cpu")).seed,
    }


class KeepsNoise(nn.Module):
    """A graph with noise windows in addition to its caches, unless it is greedy."""

    noise: Tensor | None

    def hold_noise(self, window: Tensor | None) -> None:
        """Register the windows of all rows."""
        self.register_buffer("noise", window, persistent=False)

    def noise_at(self, rows: Tensor, positions: Tensor) -> Tensor:  # [B], [B, P] -> [B, P, V]
        """Return the noise at positions that were filled before."""
        assert self.noise is not None, "a sampled call of a graph without noise windows"
        return F.embedding(window_places(rows[:, None], positions), self.noise)

    def fill_noise(
        self, rows: Tensor, positions: Tensor, seed: Tensor, ids: Tensor, by: Arithmetic
    ) -> None:
        """Compute noise and reassign the windows.

        rows: [N] int32
        positions: [N, 1] int32
        seed: [N, 2] int32
        ids: [V] int32, ids of this rank
        """
        assert self.noise is not None, "a graph without noise windows cannot fill them"
        values = by.noise(seed[:, None], positions, ids)
        self.noise = self.noise.index_put((window_places(rows, positions[:, 0]),), values)

    def touch_noise(self) -> None:
        """Reassign the windows, if any, without changes."""
        if self.noise is not None:
            first = torch.arange(1, dtype=torch.int32, device=self.noise.device)
            self.noise = self.noise.index_put((first,), self.noise.index_select(0, first))


def window_places(rows: Tensor, positions: Tensor) -> Tensor:
    """Return the indices of positions in the windows."""
    return rows * WINDOW + (positions & (WINDOW - 1))
