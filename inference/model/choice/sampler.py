"""The sampling contract on tensors: choose() for targets and rank() for drafts.

Shapes are static, types are int32 and float32, and there is no -inf and no data-dependent control
flow. So the functions run eagerly and inside compiled graphs. The choose functions agree wherever
they apply: a caller takes the cheapest that serves every row of a batch.

Kernels for the greatest scores promise nothing about equal scores, so no choice depends on it:
- The best score of logit / T + noise wins, and of equal ones the lowest id.
- The candidates of top-k and top-p are the CANDIDATES tokens of greatest logit / T. If equal scores
  lie on both sides of that limit, none of them is a candidate.
- Of the candidates, top-k and then top-p, of the mass that top-k leaves, keep the fewest that
  suffice, and all that equal the last kept one.
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

from inference.model.choice.arithmetic import HOST, LOWEST, Arithmetic
from inference.model.choice.vocabulary import (
    WHOLE_VOCABULARY,
    VocabularyShare,
    best_ids,
    leading,
    likeliest,
    lowest_best,
)
from inference.sampling import CANDIDATES, SamplingParams

_MORE = 8
"""Number of scores examined beyond the candidates', to know whether others equal the last one.
Engines find eight at once.
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
    min_p: Tensor  # [B] float32

    @classmethod
    def of(cls, rows: Sequence[SamplingParams], device: torch.device) -> Sampling:
        words = torch.tensor([[p.seed & 0xFFFFFFFF, p.seed >> 32] for p in rows], dtype=torch.int64)
        return cls(
            torch.tensor([p.temperature for p in rows], dtype=torch.float32, device=device),
            torch.tensor([p.top_k for p in rows], dtype=torch.int32, device=device),
            torch.tensor([p.top_p for p in rows], dtype=torch.float32, device=device),
            words.to(torch.int32).to(device),
            torch.tensor([p.min_p for p in rows], dtype=torch.float32, device=device),
        )

    def scaled(self, logits: Tensor) -> Tensor:  # [B, P, V] -> [B, P, V]
        """Return logits / T, or the logits where T is 0."""
        return logits / torch.where(self.temperature > 0, self.temperature, 1.0)[:, None, None]

    def weigh(self, noise_: Tensor) -> Tensor:  # [B, ...] -> [B, ...]
        """Return the noise, or 0 where T is 0."""
        return noise_ * (self.temperature > 0).to(torch.float32).view(-1, *[1] * (noise_.dim() - 1))

    @property
    def truncated(self) -> Tensor:  # [B] bool
        return (self.temperature == 0) | (self.top_k > 0) | (self.top_p < 1) | (self.min_p > 0)


def adjust(logits: Tensor, nodes: Tensor, ids: Tensor, factors: Tensor, biases: Tensor) -> None:
    """Change logits [N, V] in place, before any choice, as penalties and biases want it.

    nodes, ids, factors, biases: [M] of each change; no id of a node has two
    """
    held = logits[nodes, ids]
    logits[nodes, ids] = torch.where(held > 0, held / factors, held * factors) + biases


def exclude(logits: Tensor, allowed: Tensor) -> None:
    """Put ids that are not allowed out of reach: logits [N, V] in place, after adjust().

    allowed: [N, words] int32 a bit for each id, lowest first
    """
    steps = torch.arange(8, dtype=torch.int32, device=logits.device)
    octets = torch.arange(256, dtype=torch.int32, device=logits.device)
    table = ((octets[:, None] >> steps & 1) - 1) * OUT_OF_REACH  # [256, 8]: eight ids at once
    found = F.embedding(allowed.view(torch.uint8).to(torch.int32), table)
    logits += found.flatten(1)[:, : logits.shape[-1]]


class Scores(NamedTuple):
    """Log-probabilities of tokens, and of the most likely ones at their nodes, best first."""

    values: Tensor  # [B, P] float32
    ids: Tensor  # [B, P, k] int32
    likeliest: Tensor  # [B, P, k] float32


def score(logits: Tensor, sampling: Sampling, tokens: Tensor, k: int) -> Scores:
    """Return log-probabilities of tokens [B, P] at each row's temperature, or at 1 where that is 0,
    before top-k, top-p and min-p.
    """
    scores = sampling.scaled(logits).log_softmax(-1)
    values = torch.gather(scores, -1, tokens[..., None].to(torch.int64))[..., 0]
    ids, likeliest = in_order(*HOST.top(scores, max(k, 1)))
    return Scores(values, ids[..., :k], likeliest[..., :k])


def choose_greedy(
    logits: Tensor, share: VocabularyShare = WHOLE_VOCABULARY
) -> Tensor:  # [B, P, V] -> [B, P] int32
    """Choose tokens where every row has temperature 0."""
    return best_ids(share, logits)[0]


class Candidates(NamedTuple):
    """The most likely tokens of each node, best first, with top-k and top-p applied.

    ranked: whether some token is a candidate; else more than CANDIDATES tokens share the best score
    """

    ids: Tensor  # [B, P, C] int32
    scores: Tensor  # [B, P, C] logit / T, less OUT_OF_REACH where excluded
    whole: Tensor  # [B, P, C] logit / T
    noise: Tensor | None  # [B, P, C] of these ids, where it was asked for
    log_mass: Tensor  # [B, P, 1] log of the full softmax's denominator
    ranked: Tensor  # [B, P] bool


def find_candidates(
    logits: Tensor,
    sampling: Sampling,
    by: Arithmetic,
    drawn: Tensor | None = None,
    share: VocabularyShare = WHOLE_VOCABULARY,
) -> Candidates:
    """Return each node's candidates.

    drawn: [B, P, V] noise, of which the candidates' is returned
    """
    seen = min(CANDIDATES + _MORE, logits.shape[-1] * share.ranks)
    found = leading(share, sampling.scaled(logits), drawn, seen, by.top)
    best = found.scores[..., :1]
    beyond = torch.full_like(best, LOWEST)
    if seen > CANDIDATES:
        beyond = found.scores[..., CANDIDATES : CANDIDATES + 1]
        found = found.first(CANDIDATES)
    scores = found.scores
    log_mass = best + torch.log(found.mass)  # logsumexp, without its comparison with infinity
    mass = torch.exp(scores - log_mass)
    upto = torch.cumsum(mass, -1)
    rank = torch.arange(scores.shape[-1], dtype=torch.int32, device=logits.device)
    # top-k and top-p leave the argmax as it is, and a greedy draft's ranking whole
    hot = sampling.temperature > 0
    by_rank = hot & (sampling.top_k > 0)
    limit = torch.where(by_rank, sampling.top_k, scores.shape[-1])[:, None, None]
    top_p = torch.where(hot & (sampling.top_p < 1), sampling.top_p, 2.0)[:, None, None]
    min_p = torch.where(hot, sampling.min_p, 0.0)[:, None, None]
    first = rank < limit
    left = torch.where(first, upto, 0.0).amax(-1, keepdim=True)  # mass that top-k leaves
    left = torch.where(by_rank[:, None, None], left, 1.0)
    kept = first & (upto - mass < top_p * left) & (torch.exp(scores - best) >= min_p)
    kept = (scores >= torch.where(kept, scores, best).amin(-1, keepdim=True)) & (beyond < scores)
    return Candidates(
        found.ids,
        torch.where(kept, scores, scores - OUT_OF_REACH),
        scores,
        found.noise,
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
    found = find_candidates(logits, sampling, by)
    drawn = by.noise(sampling.seed[:, None, None], positions[:, :, None], found.ids)
    return _best_candidate(sampling, found, sampling.weigh(drawn), choose_greedy(logits))


def _best_candidate(
    sampling: Sampling, found: Candidates, drawn: Tensor, greedy: Tensor
) -> Tensor:  # [B, P, C], [B, P] -> [B, P]
    best = lowest_best(found.scores + drawn, found.ids)
    drawn_among = (sampling.temperature[:, None] > 0) & found.ranked
    return torch.where(drawn_among, best, greedy)


def choose_open(logits: Tensor, sampling: Sampling, positions: Tensor, levels: int) -> Tensor:
    """Choose among all tokens.

    Noise is made once for each distinct position, and shared by the nodes of one depth.

    logits: [B, P, V] float32
    positions: [B, P] int32, of the chosen tokens, within `levels` of the row's least
    result: [B, P] int32
    """
    drawn = shared_noise(sampling, positions, levels, _all_ids(logits), HOST)
    return choose_greedy(sampling.scaled(logits) + drawn)


def choose_mixed(
    logits: Tensor, sampling: Sampling, positions: Tensor, levels: int, by: Arithmetic = HOST
) -> Tensor:
    """Choose tokens for any mixture of rows; arguments are those of choose_open().

    Truncated and open rows share one noise, which halves the operations that a compiler sees.
    """
    drawn = shared_noise(sampling, positions, levels, _all_ids(logits), by)
    return choose_drawn(logits, sampling, drawn, by)


def _all_ids(logits: Tensor) -> Tensor:  # [..., V] -> [V]
    return torch.arange(logits.shape[-1], dtype=torch.int32, device=logits.device)


def shared_noise(
    sampling: Sampling, positions: Tensor, levels: int, ids: Tensor, by: Arithmetic = HOST
) -> Tensor:  # [B, P, V]
    """Return weighed noise of the ids [V] at each position [B, P].

    It is made once for `levels` positions, from the row's least on.
    """
    base = positions.amin(-1, keepdim=True)
    drawn = noise_table(sampling, base, levels, ids, by)
    rows = len(positions)
    first = torch.arange(0, rows * levels, levels, dtype=torch.int32, device=ids.device)[:, None]
    return F.embedding(first + positions - base, drawn.flatten(0, 1))


def noise_table(
    sampling: Sampling, first: Tensor, levels: int, ids: Tensor, by: Arithmetic = HOST
) -> Tensor:  # [B, levels, V]
    """Return weighed noise of the ids [V] at `levels` positions.

    first: [B, 1] int32, the first of these positions
    """
    level = first + torch.arange(levels, dtype=torch.int32, device=first.device)  # [B, levels]
    return sampling.weigh(by.noise(sampling.seed[:, None, None], level[:, :, None], ids))


def choose_drawn(
    logits: Tensor,
    sampling: Sampling,
    drawn: Tensor,
    by: Arithmetic = HOST,
    share: VocabularyShare = WHOLE_VOCABULARY,
) -> Tensor:  # [B, P, V], [B, P, V] -> [B, P] int32
    """Choose tokens as choose_mixed() does, with noise that was made before."""
    return choose_among(
        find_candidates(logits, sampling, by, drawn, share), logits, sampling, drawn, share
    )


def choose_among(
    found: Candidates, logits: Tensor, sampling: Sampling, drawn: Tensor, share: VocabularyShare
) -> Tensor:  # [B, P] int32
    """Choose tokens as choose_drawn() does, with candidates that were found before."""
    assert found.noise is not None, "it was asked for"
    greedy, open_ = best_ids(share, logits, sampling.scaled(logits) + drawn)
    truncated = _best_candidate(sampling, found, found.noise, greedy)
    return torch.where(sampling.truncated[:, None], truncated, open_)


def rank_greedy(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k most likely tokens and their log-probabilities: rank() where every T is 0."""
    return in_order(*HOST.top(logits.log_softmax(-1), k))


def rank(
    logits: Tensor, sampling: Sampling, positions: Tensor, k: int, by: Arithmetic = HOST
) -> tuple[Tensor, Tensor]:
    """Return a draft's k most likely choices at each node under the target's noise.

    ids: [B, P, k] int32
    scores: [B, P, k] float32

    Scores are perturbed where T > 0, and log-probabilities where T = 0. Their softmax estimates
    what the target takes.
    """
    found = find_candidates(logits, sampling, by)
    drawn = by.noise(sampling.seed[:, None, None], positions[:, :, None], found.ids)
    return _ranked(found, sampling.weigh(drawn), k, by)


def guess_greedy(
    logits: Tensor, k: int, by: Arithmetic = HOST, share: VocabularyShare = WHOLE_VOCABULARY
) -> Tensor:  # [B, P, V] -> [B, P, k] int32
    """Return the ids of rank_greedy() alone."""
    return in_order(*likeliest(share, logits, k, by.top))[0]


def guess_drawn(
    logits: Tensor,
    sampling: Sampling,
    drawn: Tensor,
    k: int,
    by: Arithmetic = HOST,
    share: VocabularyShare = WHOLE_VOCABULARY,
) -> Tensor:  # [B, P, V], [B, P, V] -> [B, P, k] int32
    """Return the ids of rank() alone, with noise that was made before."""
    found = find_candidates(logits, sampling, by, drawn, share)
    assert found.noise is not None, "it was asked for"
    return _ranked(found, found.noise, k, by)[0]


def _ranked(
    found: Candidates, drawn: Tensor, k: int, by: Arithmetic
) -> tuple[Tensor, Tensor]:  # -> [B, P, k], [B, P, k]
    scores, order = by.top(found.scores - found.log_mass + drawn, k)
    return in_order(scores, torch.gather(found.ids, -1, order))


def in_order(
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
