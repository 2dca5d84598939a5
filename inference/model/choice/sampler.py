"""The sampling contract on tensors: functions that choose tokens for targets and rank them for
drafts.

Shapes are static, types are int32 and float32, and there is no -inf and no data-dependent control
flow, so the functions run eagerly and in compiled graphs. If several choose functions apply, their
results are equal: callers use the cheapest that serves all rows of a batch.

Top-k kernels do not define the order of equal scores, so no choice depends on it:
- The token with the best logit / T + noise wins; on ties, the lowest id.
- The candidates of top-k and top-p are the CANDIDATES tokens with the greatest logit / T. If equal
  scores straddle that limit, none of them is a candidate.
- Top-k, and then top-p within the mass that top-k leaves, keep the minimum number of candidates,
  and ties with the last of them.
- If more than CANDIDATES tokens share the best score, there are no candidates, and the token is
  chosen as at temperature 0.
- A draft's children are ordered by score, then by id. Which of several equal tokens is the last
  child is undefined, which does not affect the output.
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
"""Number of scores examined after the candidates', to detect ties with the last one. Engines find
eight at once.
"""

OUT_OF_REACH = 1e9
"""Subtracted from the scores of excluded tokens; finite, since accelerators fail on inf."""


class Sampling(NamedTuple):
    """The SamplingParams of all rows as tensors.

    Compare them with integers, since torch_xla computes comparisons with 0.0 or 1.0 in float64.
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
        """Return logits / T, or the logits if T is 0."""
        return logits / torch.where(self.temperature > 0, self.temperature, 1.0)[:, None, None]

    def weigh(self, noise_: Tensor) -> Tensor:  # [B, ...] -> [B, ...]
        """Return the noise, or 0 if T is 0."""
        return noise_ * (self.temperature > 0).to(torch.float32).view(-1, *[1] * (noise_.dim() - 1))

    @property
    def truncated(self) -> Tensor:  # [B] bool
        return (self.temperature == 0) | (self.top_k > 0) | (self.top_p < 1) | (self.min_p > 0)


def adjust(logits: Tensor, nodes: Tensor, ids: Tensor, factors: Tensor, biases: Tensor) -> None:
    """Apply penalties and biases to logits [N, V] in place, before sampling.

    nodes, ids, factors, biases: [M] for each change, with distinct ids per node
    """
    values = logits[nodes, ids]
    logits[nodes, ids] = torch.where(values > 0, values / factors, values * factors) + biases


def exclude(logits: Tensor, allowed: Tensor) -> None:
    """Subtract OUT_OF_REACH in place from logits [N, V] of ids that are not allowed, after
    adjust().

    allowed: [N, words] int32, a bit for each id, the lowest first
    """
    steps = torch.arange(8, dtype=torch.int32, device=logits.device)
    octets = torch.arange(256, dtype=torch.int32, device=logits.device)
    table = ((octets[:, None] >> steps & 1) - 1) * OUT_OF_REACH  # [256, 8]: eight ids at once
    offsets = F.embedding(allowed.view(torch.uint8).to(torch.int32), table)
    logits += offsets.flatten(1)[:, : logits.shape[-1]]


class Scores(NamedTuple):
    """Log-probabilities of a token and of the k most likely tokens (best first) at each node."""

    values: Tensor  # [B, P] float32
    ids: Tensor  # [B, P, k] int32
    likeliest: Tensor  # [B, P, k] float32


def score(logits: Tensor, sampling: Sampling, tokens: Tensor, k: int) -> Scores:
    """Return log-probabilities of tokens [B, P] before top-k, top-p and min-p, at the temperature
    of each row (1 if it is 0).
    """
    scores = sampling.scaled(logits).log_softmax(-1)
    values = torch.gather(scores, -1, tokens[..., None].to(torch.int64))[..., 0]
    ids, likeliest = in_order(*HOST.top(scores, max(k, 1)))
    return Scores(values, ids[..., :k], likeliest[..., :k])


def choose_greedy(
    logits: Tensor, share: VocabularyShare = WHOLE_VOCABULARY
) -> Tensor:  # [B, P, V] -> [B, P] int32
    """Choose tokens if all rows have temperature 0."""
    return best_ids(share, logits)[0]


class Candidates(NamedTuple):
    """The most likely tokens of each node, best first, with top-k and top-p applied.

    ranked: whether there are candidates; otherwise more than CANDIDATES tokens share the best score
    """

    ids: Tensor  # [B, P, C] int32
    scores: Tensor  # [B, P, C] logit / T, less OUT_OF_REACH where excluded
    raw: Tensor  # [B, P, C] logit / T
    noise: Tensor | None  # [B, P, C] of these ids, if requested
    log_mass: Tensor  # [B, P, 1] log of the denominator of the full softmax
    ranked: Tensor  # [B, P] bool


def find_candidates(
    logits: Tensor,
    sampling: Sampling,
    by: Arithmetic,
    drawn: Tensor | None = None,
    share: VocabularyShare = WHOLE_VOCABULARY,
) -> Candidates:
    """Return the candidates of each node.

    drawn: [B, P, V] noise; the candidates' part is returned
    """
    examined = min(CANDIDATES + _MORE, logits.shape[-1] * share.ranks)
    leaders = leading(share, sampling.scaled(logits), drawn, examined, by.top)
    best = leaders.scores[..., :1]
    beyond = torch.full_like(best, LOWEST)
    if examined > CANDIDATES:
        beyond = leaders.scores[..., CANDIDATES : CANDIDATES + 1]
        leaders = leaders.first(CANDIDATES)
    scores = leaders.scores
    log_mass = best + torch.log(leaders.mass)  # logsumexp, without its comparison with infinity
    mass = torch.exp(scores - log_mass)
    upto = torch.cumsum(mass, -1)
    rank = torch.arange(scores.shape[-1], dtype=torch.int32, device=logits.device)
    # top-k and top-p do not change the argmax, nor the ranking of a greedy draft
    hot = sampling.temperature > 0
    by_rank = hot & (sampling.top_k > 0)
    limit = torch.where(by_rank, sampling.top_k, scores.shape[-1])[:, None, None]
    top_p = torch.where(hot & (sampling.top_p < 1), sampling.top_p, 2.0)[:, None, None]
    min_p = torch.where(hot, sampling.min_p, 0.0)[:, None, None]
    first = rank < limit
    top_k_mass = torch.where(first, upto, 0.0).amax(-1, keepdim=True)  # mass that top-k leaves
    top_k_mass = torch.where(by_rank[:, None, None], top_k_mass, 1.0)
    mask = first & (upto - mass < top_p * top_k_mass) & (torch.exp(scores - best) >= min_p)
    mask = (scores >= torch.where(mask, scores, best).amin(-1, keepdim=True)) & (beyond < scores)
    return Candidates(
        leaders.ids,
        torch.where(mask, scores, scores - OUT_OF_REACH),
        scores,
        leaders.noise,
        log_mass,
        (beyond < best)[..., 0],
    )


def choose_truncated(
    logits: Tensor, sampling: Sampling, positions: Tensor, by: Arithmetic = HOST
) -> Tensor:
    """Choose tokens if all rows are truncated (SamplingParams.truncated), computing noise only for
    candidates.

    logits: [B, P, V] float32
    positions: [B, P] int32, positions of the tokens to choose
    result: [B, P] int32
    """
    candidates = find_candidates(logits, sampling, by)
    drawn = by.noise(sampling.seed[:, None, None], positions[:, :, None], candidates.ids)
    return _best_candidate(sampling, candidates, sampling.weigh(drawn), choose_greedy(logits))


def _best_candidate(
    sampling: Sampling, pool: Candidates, drawn: Tensor, greedy: Tensor
) -> Tensor:  # [B, P, C], [B, P] -> [B, P]
    best = lowest_best(pool.scores + drawn, pool.ids)
    drawn_among = (sampling.temperature[:, None] > 0) & pool.ranked
    return torch.where(drawn_among, best, greedy)


def choose_open(logits: Tensor, sampling: Sampling, positions: Tensor, levels: int) -> Tensor:
    """Choose among all tokens. Nodes of the same depth share noise.

    logits: [B, P, V] float32
    positions: [B, P] int32, positions of the tokens to choose, within `levels` of the row's lowest
    result: [B, P] int32
    """
    drawn = shared_noise(sampling, positions, levels, _all_ids(logits), HOST)
    return choose_greedy(sampling.scaled(logits) + drawn)


def choose_mixed(
    logits: Tensor, sampling: Sampling, positions: Tensor, levels: int, by: Arithmetic = HOST
) -> Tensor:
    """Choose tokens for any mixture of rows. Arguments as in choose_open().

    Truncated and open rows use the same noise, which halves the operations in a graph.
    """
    drawn = shared_noise(sampling, positions, levels, _all_ids(logits), by)
    return choose_drawn(logits, sampling, drawn, by)


def _all_ids(logits: Tensor) -> Tensor:  # [..., V] -> [V]
    return torch.arange(logits.shape[-1], dtype=torch.int32, device=logits.device)


def shared_noise(
    sampling: Sampling, positions: Tensor, levels: int, ids: Tensor, by: Arithmetic = HOST
) -> Tensor:  # [B, P, V]
    """Return noise for ids [V] at positions [B, P], 0 in greedy rows. It is computed once for
    `levels` positions from the row's lowest one.
    """
    base = positions.amin(-1, keepdim=True)
    drawn = noise_table(sampling, base, levels, ids, by)
    rows = len(positions)
    first = torch.arange(0, rows * levels, levels, dtype=torch.int32, device=ids.device)[:, None]
    return F.embedding(first + positions - base, drawn.flatten(0, 1))


def noise_table(
    sampling: Sampling, first: Tensor, levels: int, ids: Tensor, by: Arithmetic = HOST
) -> Tensor:  # [B, levels, V]
    """Return noise for ids [V] at `levels` positions, 0 in greedy rows.

    first: [B, 1] int32, the first position
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
    """Choose tokens like choose_mixed(), with noise that was computed before."""
    return choose_among(
        find_candidates(logits, sampling, by, drawn, share), logits, sampling, drawn, share
    )


def choose_among(
    pool: Candidates, logits: Tensor, sampling: Sampling, drawn: Tensor, share: VocabularyShare
) -> Tensor:  # [B, P] int32
    """Choose tokens like choose_drawn(), with candidates that were computed before."""
    assert pool.noise is not None, "it was asked for"
    greedy, open_ = best_ids(share, logits, sampling.scaled(logits) + drawn)
    truncated = _best_candidate(sampling, pool, pool.noise, greedy)
    return torch.where(sampling.truncated[:, None], truncated, open_)


def rank_greedy(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k most likely tokens and their log-probabilities: rank() if every T is 0."""
    return in_order(*HOST.top(logits.log_softmax(-1), k))


def rank(
    logits: Tensor, sampling: Sampling, positions: Tensor, k: int, by: Arithmetic = HOST
) -> tuple[Tensor, Tensor]:
    """Return a draft's k most likely tokens at each node under the target's noise.

    ids: [B, P, k] int32
    scores: [B, P, k] float32, log-probabilities, plus noise if T > 0

    The softmax of the scores estimates the probability that the target chooses the token.
    """
    candidates = find_candidates(logits, sampling, by)
    drawn = by.noise(sampling.seed[:, None, None], positions[:, :, None], candidates.ids)
    return _ranked(candidates, sampling.weigh(drawn), k, by)


def guess_greedy(
    logits: Tensor, k: int, by: Arithmetic = HOST, share: VocabularyShare = WHOLE_VOCABULARY
) -> Tensor:  # [B, P, V] -> [B, P, k] int32
    """Return the ids of rank_greedy() without scores."""
    return in_order(*likeliest(share, logits, k, by.top))[0]


def guess_drawn(
    logits: Tensor,
    sampling: Sampling,
    drawn: Tensor,
    k: int,
    by: Arithmetic = HOST,
    share: VocabularyShare = WHOLE_VOCABULARY,
) -> Tensor:  # [B, P, V], [B, P, V] -> [B, P, k] int32
    """Return the ids of rank() without scores, with noise that was computed before."""
    candidates = find_candidates(logits, sampling, by, drawn, share)
    assert candidates.noise is not None, "it was asked for"
    return _ranked(candidates, candidates.noise, k, by)[0]


def _ranked(
    candidates: Candidates, drawn: Tensor, k: int, by: Arithmetic
) -> tuple[Tensor, Tensor]:  # -> [B, P, k], [B, P, k]
    scores, order = by.top(candidates.scores - candidates.log_mass + drawn, k)
    return in_order(scores, torch.gather(candidates.ids, -1, order))


def in_order(
    scores: Tensor, ids: Tensor
) -> tuple[Tensor, Tensor]:  # [..., k], [..., k] -> [..., k], [..., k]
    """Return ids and scores with equal scores ordered by id.

    scores: in descending order
    """
    mine, theirs = scores[..., :, None], scores[..., None, :]
    ahead = (mine < theirs) | ((mine == theirs) & (ids[..., None, :] < ids[..., :, None]))
    place = ahead.to(torch.float32).sum(-1, keepdim=True)  # [..., k, 1], of each id
    places = torch.arange(ids.shape[-1], dtype=torch.float32, device=ids.device)
    return torch.where(place == places, ids[..., :, None], 0).amax(-2), scores
