"""The sampling contract on tensors: noise, choose() for targets and rank() for drafts.

Shapes are static, types are int32 and float32, and there is no -inf and no data-dependent control
flow. So the functions run eagerly and inside compiled graphs. The three choose functions agree
wherever they apply: a caller takes the cheapest that serves every row of a batch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.sampling import CANDIDATES, SamplingParams

Add = Callable[[Tensor, Tensor], Tensor]

OUT_OF_REACH = 1e9
"""Subtracted from the scores of tokens that top-k or top-p excludes. Finite, because
accelerators fail on infinities.
"""

_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_ROUNDS = 13
_PARITY = 0x1BD11BDA


def _left(x: Tensor, bits: int) -> Tensor:
    return torch.bitwise_left_shift(
        x, torch.scalar_tensor(bits, dtype=torch.int32, device=x.device)
    )


def _right(x: Tensor, bits: int) -> Tensor:
    """Arithmetic shift right: copies of the sign come in from the left.

    Both operands are tensors, because torch_xla turns x >> number into a division that rounds
    towards 0.
    """
    return torch.bitwise_right_shift(
        x, torch.scalar_tensor(bits, dtype=torch.int32, device=x.device)
    )


def add_in_halves(a: Tensor, b: Tensor) -> Tensor:
    """Add 32-bit integers with every intermediate below 2**17: exact even where units add in
    float32.
    """
    low = (a & 0xFFFF) + (b & 0xFFFF)
    high = (_right(a, 16) & 0xFFFF) + (_right(b, 16) & 0xFFFF) + _right(low, 16)
    return _left(high & 0xFFFF, 16) | (low & 0xFFFF)


def threefry2x32(
    key: tuple[Tensor, Tensor], counter: tuple[Tensor, Tensor], add: Add = operator.add
) -> tuple[Tensor, Tensor]:
    """13 rounds of Threefry-2x32 (Salmon et al. 2011) on int32 tensors that broadcast.

    `add` must wrap at 32 bits.
    """
    keys = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    x, y = add(counter[0], keys[0]), add(counter[1], keys[1])
    for index in range(_ROUNDS):
        turn = _ROTATIONS[index % 8]
        x = add(x, y)
        y = (_left(y, turn) | (_right(y, 32 - turn) & ((1 << turn) - 1))) ^ x
        if index % 4 == 3:
            round_ = index // 4 + 1
            x = add(x, keys[round_ % 3])
            y = add(y, add(keys[(round_ + 1) % 3], torch.full_like(keys[0], round_)))
    return x, y


def noise(seed: Tensor, positions: Tensor, ids: Tensor, add: Add = operator.add) -> Tensor:
    """Return float32 Gumbel noise of tokens `ids` at absolute `positions`; both broadcast.

    seed: [..., 2] int32
    """
    bits, _ = threefry2x32((seed[..., 0], seed[..., 1]), (ids, positions), add)
    uniform = ((_right(bits, 9) & 0x7FFFFF).to(torch.float32) + 0.5) * 2.0**-23
    return -torch.log(-torch.log(uniform))


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
    """The most likely tokens of each node, best first, with top-k and top-p applied."""

    ids: Tensor  # [B, P, C] int32
    scores: Tensor  # [B, P, C] logit / T, less OUT_OF_REACH where excluded
    log_mass: Tensor  # [B, P, 1] log of the full softmax's denominator


def _candidates(logits: Tensor, sampling: Sampling) -> Candidates:
    scaled = sampling.scaled(logits)
    scores, ids = torch.topk(scaled, min(CANDIDATES, logits.shape[-1]), dim=-1)
    best = scores[..., :1]
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
    kept = scores >= least  # the order of equal scores is the kernel's own: all of them are kept
    return Candidates(
        ids.to(torch.int32), torch.where(kept, scores, scores - OUT_OF_REACH), log_mass
    )


def choose_truncated(
    logits: Tensor, sampling: Sampling, positions: Tensor, add: Add = operator.add
) -> Tensor:
    """Choose tokens where every row is truncated (SamplingParams.truncated).

    Noise is made for the candidates only.

    logits: [B, P, V] float32
    positions: [B, P] int32, of the chosen tokens
    result: [B, P] int32
    """
    found = _candidates(logits, sampling)
    return _best_candidate(
        logits,
        sampling,
        found,
        sampling.weigh(noise(sampling.seed[:, None, None], positions[:, :, None], found.ids, add)),
    )


def _best_candidate(logits: Tensor, sampling: Sampling, found: Candidates, drawn: Tensor) -> Tensor:
    best = _best(found.scores + drawn, found.ids)
    return torch.where(
        sampling.temperature[:, None] > 0, best, choose_greedy(logits)
    )  # more tokens can tie than there are candidates


def choose_open(
    logits: Tensor, sampling: Sampling, positions: Tensor, levels: int, add: Add = operator.add
) -> Tensor:
    """Choose among all tokens.

    Noise is made once for each distinct position, and shared by the nodes of one depth.

    logits: [B, P, V] float32
    positions: [B, P] int32, of the chosen tokens, within `levels` of the row's least
    result: [B, P] int32
    """
    return _first_best(
        sampling.scaled(logits) + _shared_noise(logits, sampling, positions, levels, add)
    )


def _shared_noise(
    logits: Tensor, sampling: Sampling, positions: Tensor, levels: int, add: Add
) -> Tensor:  # [B, P, V]
    """Return weighed noise of every token at each position.

    It is made once for `levels` positions, from the row's least on.
    """
    base = positions.amin(-1, keepdim=True)
    drawn = noise_table(sampling, base, levels, logits.shape[-1], add)
    first = torch.arange(0, len(logits) * levels, levels, dtype=torch.int32, device=logits.device)[
        :, None
    ]
    return F.embedding(first + positions - base, drawn.flatten(0, 1))


def choose_mixed(
    logits: Tensor, sampling: Sampling, positions: Tensor, levels: int, add: Add = operator.add
) -> Tensor:
    """Choose tokens for any mixture of rows; arguments are those of choose_open().

    Truncated and open rows share one noise, which halves the operations that a compiler sees.
    """
    return choose_drawn(logits, sampling, _shared_noise(logits, sampling, positions, levels, add))


def noise_table(
    sampling: Sampling, first: Tensor, levels: int, vocabulary: int, add: Add = operator.add
) -> Tensor:  # [B, levels, V]
    """Return weighed noise of every token at `levels` positions.

    first: [B, 1] int32, the first of these positions
    """
    level = first + torch.arange(levels, dtype=torch.int32, device=first.device)  # [B, levels]
    ids = torch.arange(vocabulary, dtype=torch.int32, device=first.device)
    return sampling.weigh(noise(sampling.seed[:, None, None], level[:, :, None], ids, add))


def choose_drawn(
    logits: Tensor, sampling: Sampling, drawn: Tensor
) -> Tensor:  # [B, P, V], [B, P, V] -> [B, P] int32
    """Choose tokens as choose_mixed() does, with noise that was made before."""
    found = _candidates(logits, sampling)
    truncated = _best_candidate(logits, sampling, found, torch.gather(drawn, -1, found.ids))
    return torch.where(
        sampling.truncated[:, None], truncated, _first_best(sampling.scaled(logits) + drawn)
    )


def rank_greedy(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k likeliest tokens and their log-probabilities: rank() where every T is 0."""
    scores, ids = torch.topk(logits.log_softmax(-1), k, dim=-1)
    return ids.to(torch.int32), scores


def rank(
    logits: Tensor, sampling: Sampling, positions: Tensor, k: int, add: Add = operator.add
) -> tuple[Tensor, Tensor]:
    """Return a draft's k likeliest choices at each node under the target's noise.

    ids: [B, P, k] int32
    scores: [B, P, k] float32

    Scores are perturbed where T > 0, and log-probabilities where T = 0. Their softmax estimates
    what the target takes.
    """
    found = _candidates(logits, sampling)
    drawn = noise(sampling.seed[:, None, None], positions[:, :, None], found.ids, add)
    scores, order = torch.topk(found.scores - found.log_mass + sampling.weigh(drawn), k, dim=-1)
    return torch.gather(found.ids, -1, order), scores


def guess_greedy(logits: Tensor, k: int) -> Tensor:  # [B, P, V] -> [B, P, k] int32
    """Return the ids of rank_greedy() alone."""
    return torch.topk(logits, k, dim=-1).indices.to(torch.int32)


def guess_drawn(
    logits: Tensor, sampling: Sampling, drawn: Tensor, k: int
) -> Tensor:  # [B, P, V], [B, P, V] -> [B, P, k] int32
    """Return the ids of rank() alone, with noise that was made before."""
    found = _candidates(logits, sampling)
    order = torch.topk(
        found.scores - found.log_mass + torch.gather(drawn, -1, found.ids), k, dim=-1
    ).indices.to(torch.int32)
    return torch.gather(found.ids, -1, order)
