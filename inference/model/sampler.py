"""The sampling contract on tensors: choose() for targets and rank() for drafts.

Shapes are static, types are int32 and float32, and there is no -inf and no data-dependent control
flow. So the functions run eagerly and inside compiled graphs. The choose functions agree wherever
they apply: a caller takes the cheapest that serves every row of a batch.

Kernels for the greatest scores promise nothing about equal scores, so no choice depends on it:
- The best score of logit / T + noise wins, and of equal ones the lowest id.
- The candidates of top-k and top-p are the CANDIDATES tokens of greatest logit / T. If equal scores
  lie on both sides of that limit, none of them is a candidate.
- Of the candidates, top-k and top-p keep the fewest that suffice, and all that equal the last kept
  one.
- If more than CANDIDATES tokens share the best score, there are no candidates, and the choice is
  that of temperature 0.
- A draft's children are in order of score, and of id among equal scores. Which of several equal
  tokens is the last child is open: it changes no text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.model.arithmetic import HOST, LOWEST, Arithmetic
from inference.sampling import CANDIDATES, SamplingParams

_MORE = 8
"""Scores looked at beyond the candidates', to know whether the last candidate has equals. Engines
find eight at once.
"""

OUT_OF_REACH = 1e9
"""Subtracted from the scores of tokens that top-k or top-p excludes. Finite, because
accelerators fail on infinities.
"""


class Sampling(NamedTuple):
    """Each row's SamplingParams as tensors.

    Compare them with 0 and 1: torch_xla widens a comparison with 0.0 or 1.0 to float64.
    """

    temperature: Tensor  # [B] float32
    top_k: Tensor  # [B] int32
    top_p: Tensor  # [B] float32
    seed: Tensor  # [B, 2] int32: the low and the high word

    @classmethod
    def of(cls, rows: Sequence[SamplingParams], device: torch.device) -> Sampling:
        words = torch.tensor([[p.seed & 0xFFFFFFFF, p.seed >> 32] for p in rows], dtype=torch.int64)
        return cls(
            torch.tensor([p.temperature for p in rows], dtype=torch.float32, device=device),
            torch.tensor([p.top_k for p in rows], dtype=torch.int32, device=device),
            torch.tensor([p.top_p for p in rows], dtype=torch.float32, device=device),
            words.to(torch.int32).to(device),
        )

    def scaled(self, logits: Tensor) -> Tensor:  # [B, P, V] -> [B, P, V]
        """Return logits / T, or the logits where T is 0."""
        return logits / torch.where(self.temperature > 0, self.temperature, 1.0)[:, None, None]

    def weigh(self, noise_: Tensor) -> Tensor:  # [B, ...] -> [B, ...]
        """Return the noise, or 0 where T is 0."""
        return noise_ * (self.temperature > 0).to(torch.float32).view(-1, *[1] * (noise_.dim() - 1))

    @property
    def truncated(self) -> Tensor:  # [B] bool
        return (self.temperature == 0) | (self.top_k > 0) | (self.top_p < 1)


def _best(scores: Tensor, ids: Tensor) -> Tensor:  # [..., N], [..., N] -> [...]
    """Return the id with the best score, the lowest id on ties."""
    best = scores.amax(-1, keepdim=True)
    return torch.where(scores == best, ids, torch.iinfo(torch.int32).max).amin(-1)


def _first_best(scores: Tensor) -> Tensor:  # [..., V] -> [...]
    """Return the lowest id with the best score, where the last axis is the ids.

    argmax is documented to return the first maximum.
    """
    return scores.argmax(-1).to(torch.int32)


def choose_greedy(logits: Tensor) -> Tensor:  # [B, P, V] -> [B, P] int32
    """Choose tokens where every row has temperature 0."""
    return _first_best(logits)


class Candidates(NamedTuple):
    """The most likely tokens of each node, best first, with top-k and top-p applied.

    ranked: some token is a candidate; else more than CANDIDATES tokens share the best score.
    """

    ids: Tensor  # [B, P, C] int32
    scores: Tensor  # [B, P, C] logit / T, less OUT_OF_REACH where excluded
    log_mass: Tensor  # [B, P, 1] log of the full softmax's denominator
    ranked: Tensor  # [B, P] bool


def _candidates(logits: Tensor, sampling: Sampling, by: Arithmetic) -> Candidates:
    scaled = sampling.scaled(logits)
    seen = min(CANDIDATES + _MORE, logits.shape[-1])
    scores, ids = by.top(scaled, seen)
    best = scores[..., :1]
    if seen > CANDIDATES:
        beyond = scores[..., CANDIDATES : CANDIDATES + 1]
        scores, ids = scores[..., :CANDIDATES], ids[..., :CANDIDATES]
    else:
        beyond = torch.full_like(best, LOWEST)
    log_mass = best + torch.log(
        torch.exp(scaled - best).sum(-1, keepdim=True)
    )  # logsumexp, without its comparison with infinity
    mass = torch.exp(scores - log_mass)
    before = torch.cumsum(mass, -1) - mass
    rank = torch.arange(scores.shape[-1], dtype=torch.int32, device=logits.device)
    drawn = (
        sampling.temperature > 0
    )  # top-k and top-p leave the argmax as it is, and a greedy draft's ranking whole
    limit = torch.where(drawn & (sampling.top_k > 0), sampling.top_k, scores.shape[-1])[
        :, None, None
    ]
    top_p = torch.where(drawn & (sampling.top_p < 1), sampling.top_p, 2.0)[:, None, None]
    kept = (rank < limit) & (before < top_p)
    least = torch.where(kept, scores, best).amin(-1, keepdim=True)
    kept = (scores >= least) & (beyond < scores)
    return Candidates(
        ids,
        torch.where(kept, scores, scores - OUT_OF_REACH),
        log_mass,
        (beyond < best)[..., 0],
    )


def choose_truncated(
    logits: Tensor, sampling: Sampling, positions: Tensor, by: Arithmetic = HOST
) -> Tensor:
    """Choose tokens where every row is truncated (SamplingParams.truncated).

    Noise is made for the candidates only.

    logits: [B, P, V] float32
    positions: [B, P] int32, of the chosen tokens
    result: [B, P] int32
    """
    found = _candidates(logits, sampling, by)
    drawn = by.noise(sampling.seed[:, None, None], positions[:, :, None], found.ids)
    return _best_candidate(logits, sampling, found, sampling.weigh(drawn))


def _best_candidate(logits: Tensor, sampling: Sampling, found: Candidates, drawn: Tensor) -> Tensor:
    best = _best(found.scores + drawn, found.ids)
    drawn_among = (sampling.temperature[:, None] > 0) & found.ranked
    return torch.where(drawn_among, best, choose_greedy(logits))


def choose_open(
    logits: Tensor, sampling: Sampling, positions: Tensor, levels: int, by: Arithmetic = HOST
) -> Tensor:
    """Choose among all tokens.

    Noise is made once for each distinct position, and shared by the nodes of one depth.

    logits: [B, P, V] float32
    positions: [B, P] int32, of the chosen tokens, within `levels` of the row's least
    result: [B, P] int32
    """
    return _first_best(
        sampling.scaled(logits) + _shared_noise(logits, sampling, positions, levels, by)
    )


def _shared_noise(
    logits: Tensor, sampling: Sampling, positions: Tensor, levels: int, by: Arithmetic
) -> Tensor:  # [B, P, V]
    """Return weighed noise of every token at each position.

    It is made once for `levels` positions, from the row's least on.
    """
    base = positions.amin(-1, keepdim=True)
    drawn = noise_table(sampling, base, levels, logits.shape[-1], by)
    first = torch.arange(0, len(logits) * levels, levels, dtype=torch.int32, device=logits.device)[
        :, None
    ]
    return F.embedding(first + positions - base, drawn.flatten(0, 1))


def choose_mixed(
    logits: Tensor, sampling: Sampling, positions: Tensor, levels: int, by: Arithmetic = HOST
) -> Tensor:
    """Choose tokens for any mixture of rows; arguments are those of choose_open().

    Truncated and open rows share one noise, which halves the operations that a compiler sees.
    """
    drawn = _shared_noise(logits, sampling, positions, levels, by)
    return choose_drawn(logits, sampling, drawn, by)


def noise_table(
    sampling: Sampling, first: Tensor, levels: int, vocabulary: int, by: Arithmetic = HOST
) -> Tensor:  # [B, levels, V]
    """Return weighed noise of every token at `levels` positions.

    first: [B, 1] int32, the first of these positions
    """
    level = first + torch.arange(levels, dtype=torch.int32, device=first.device)  # [B, levels]
    ids = torch.arange(vocabulary, dtype=torch.int32, device=first.device)
    return sampling.weigh(by.noise(sampling.seed[:, None, None], level[:, :, None], ids))


def choose_drawn(
    logits: Tensor, sampling: Sampling, drawn: Tensor, by: Arithmetic = HOST
) -> Tensor:  # [B, P, V], [B, P, V] -> [B, P] int32
    """Choose tokens as choose_mixed() does, with noise that was made before."""
    found = _candidates(logits, sampling, by)
    truncated = _best_candidate(logits, sampling, found, torch.gather(drawn, -1, found.ids))
    return torch.where(
        sampling.truncated[:, None], truncated, _first_best(sampling.scaled(logits) + drawn)
    )


def rank_greedy(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k likeliest tokens and their log-probabilities: rank() where every T is 0."""
    return _in_order(*HOST.top(logits.log_softmax(-1), k))


def rank(
    logits: Tensor, sampling: Sampling, positions: Tensor, k: int, by: Arithmetic = HOST
) -> tuple[Tensor, Tensor]:
    """Return a draft's k likeliest choices at each node under the target's noise.

    ids: [B, P, k] int32
    scores: [B, P, k] float32

    Scores are perturbed where T > 0, and log-probabilities where T = 0. Their softmax estimates
    what the target takes.
    """
    found = _candidates(logits, sampling, by)
    drawn = by.noise(sampling.seed[:, None, None], positions[:, :, None], found.ids)
    return _ranked(found, sampling.weigh(drawn), k, by)


def guess_greedy(
    logits: Tensor, k: int, by: Arithmetic = HOST
) -> Tensor:  # [B, P, V] -> [B, P, k] int32
    """Return the ids of rank_greedy() alone."""
    return _in_order(*by.top(logits, k))[0]


def guess_drawn(
    logits: Tensor, sampling: Sampling, drawn: Tensor, k: int, by: Arithmetic = HOST
) -> Tensor:  # [B, P, V], [B, P, V] -> [B, P, k] int32
    """Return the ids of rank() alone, with noise that was made before."""
    found = _candidates(logits, sampling, by)
    return _ranked(found, torch.gather(drawn, -1, found.ids), k, by)[0]


def _ranked(
    found: Candidates, drawn: Tensor, k: int, by: Arithmetic
) -> tuple[Tensor, Tensor]:  # -> [B, P, k], [B, P, k]
    scores, order = by.top(found.scores - found.log_mass + drawn, k)
    return _in_order(scores, torch.gather(found.ids, -1, order))


def _in_order(
    scores: Tensor, ids: Tensor
) -> tuple[Tensor, Tensor]:  # [..., k], [..., k] -> [..., k], [..., k]
    """Return ids and scores, the best score first and among equal scores the lowest id.

    scores: in descending order
    """
    mine, other = scores[..., :, None], scores[..., None, :]
    ahead = (mine < other) | ((mine == other) & (ids[..., None, :] < ids[..., :, None]))
    place = ahead.to(torch.float32).sum(-1, keepdim=True)  # [..., k, 1], of each id
    places = torch.arange(ids.shape[-1], dtype=torch.float32, device=ids.device)
    return torch.where(place == places, ids[..., :, None], 0).amax(-2), scores
