"""The sampler against a float64 softmax and the noise, its ties, and one meaning for all."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import TopKLogitsWarper, TopPLogitsWarper

from inference.model.choice.arithmetic import ENGINES, HOST, Arithmetic, noise, top, top_in_stages
from inference.model.choice.sampler import (
    Sampling,
    choose_greedy,
    choose_mixed,
    choose_open,
    choose_truncated,
    rank,
    rank_greedy,
)
from inference.sampling import CANDIDATES, SamplingParams
from tests.support.oracles import exact_gumbel, seed_words, threefry

CPU = torch.device("cpu")


CUT = [
    SamplingParams(temperature, top_k, top_p, min_p=min_p)
    for temperature in (0.7, 1.0)
    for top_k, top_p, min_p in (
        *((5, 1.0, 0.0), (40, 1.0, 0.0), (0, 0.9, 0.0), (0, 0.5, 0.0), (20, 0.8, 0.0)),
        *((0, 0.999, 0.0), (0, 1.0, 0.03), (0, 1.0, 0.4), (0, 1.0, 1.0), (20, 0.8, 0.1)),
    )
]


def allowed(logits: NDArray[np.float32], params: SamplingParams) -> NDArray[np.bool_]:
    """The tokens that may be chosen, in float64: of the best 256 the best top_k, and of these the
    fewest whose part of what top-k leaves at T reaches top_p, but none with less than min_p of the
    best one's. What ties with the last is one, too.
    """
    if params.greedy or not params.truncated:
        return np.ones(len(logits), dtype=np.bool_)
    scaled = logits.astype(np.float64) / params.temperature
    weights = np.exp(scaled - scaled.max())
    order = np.argsort(-weights)[: min(params.top_k or CANDIDATES, CANDIDATES)]
    shares = weights[order] / (weights[order] if params.top_k else weights).sum()
    before = np.cumsum(shares) - shares
    kept = order if params.top_p == 1 else order[before < params.top_p]
    kept = kept[weights[kept] >= params.min_p * weights.max()]
    return np.asarray(logits >= logits[kept].min())


def assert_best(logits: Tensor, params: SamplingParams, at: Tensor, chosen: Tensor) -> None:
    """Each chosen token [P] is allowed, and no allowed one has more of logit / T and noise.

    In 32 bits a total rounds by 2**-24 of itself, and its logit / T by twice that, so two totals
    that are nearer than 2**-21 of the largest logit / T and noise together may change places.

    logits: [P, V]
    at: [P], positions of the chosen tokens
    """
    ids = torch.arange(logits.shape[-1], dtype=torch.int32)
    for scores, position, token in zip(logits, at, chosen.tolist(), strict=True):
        may = torch.from_numpy(allowed(scores.numpy(), params))
        gumbel = 0.0 if params.greedy else noise(seed_words(params.seed), position, ids).double()
        scaled = scores.double() / (params.temperature or 1.0)
        total = scaled + gumbel
        near = 2.0**-21 * float(scaled.abs().max() + torch.as_tensor(gumbel).abs().max())
        assert may[token]
        assert total[token] >= total[may].max() - near


def coarse(logits: Tensor) -> Tensor:
    """Logits with many equal ones, as heads in bfloat16 give them."""
    return (logits * 4).round() / 4


@pytest.mark.covering(1)
@pytest.mark.parametrize("params", [*map(SamplingParams, (0.0, 0.3, 0.7, 1.0, 2.0)), *CUT], ids=str)
@pytest.mark.parametrize("size", [50, 1000])
@pytest.mark.parametrize("spread", [0.5, 2.0, 30.0, 300.0])
def test_the_choice_is_the_best_of_logits_over_temperature_plus_noise(
    size: int, spread: float, params: SamplingParams
) -> None:
    """Of the tokens that top-k and top-p leave, and of those that tie with the last of them; an
    open choice is not cut at the candidates.
    """
    for seed in range(12):
        logits, at = logits_for(2, size, seed, spread), positions_for(2) + 7 * seed
        logits = coarse(logits) if seed % 2 else logits
        rows = [replace(params, seed=seed * 7919 + 5), replace(params, seed=2**63 - 1 - seed)]
        sampling = Sampling.of(rows, CPU)
        own = choose_truncated if params.truncated else partial(choose_open, levels=3)
        for chosen in (own(logits, sampling, at), choose_mixed(logits, sampling, at, 3)):
            for row, seeded in enumerate(rows):
                assert_best(logits[row], seeded, at[row], chosen[row])


AT = torch.tensor([[9, 10, 10, 11]], dtype=torch.int32)
MIXTURE = [
    SamplingParams(),
    SamplingParams(1.0, seed=3),
    SamplingParams(0.7, 5, 0.9, seed=4),
    SamplingParams(0, 3, 0.5, seed=5),
    SamplingParams(0.7, seed=2**40 + 1),
    SamplingParams(1.0, min_p=0.1, seed=6),
]


def logits_for(rows: int, size: int, seed: int, spread: float = 3.0) -> Tensor:
    return torch.randn(rows, 4, size, generator=torch.Generator().manual_seed(seed)) * spread


def positions_for(rows: int) -> Tensor:
    return AT + 5 * torch.arange(rows, dtype=torch.int32)[:, None]


@pytest.mark.parametrize(
    "params",
    [SamplingParams(), SamplingParams(top_k=1), SamplingParams(top_k=4, top_p=0.3)],
    ids=str,
)
@pytest.mark.parametrize(
    "tied",
    [(3, 500), (999, 998), tuple(range(100, 110)), tuple(range(1000))],
    ids=["2", "last 2", "10", "all"],
)
def test_at_temperature_0_a_tie_goes_to_the_lowest_id(
    tied: tuple[int, ...], params: SamplingParams
) -> None:
    logits = torch.zeros(1, 1, 1000)
    logits[0, 0, list(tied)] = 4.0
    sampling, at = Sampling.of([params], CPU), AT[:, :1]
    assert choose_greedy(logits).tolist() == [[min(tied)]]
    assert choose_truncated(logits, sampling, at).tolist() == [[min(tied)]]
    for choose in (choose_mixed, choose_open):
        assert choose(logits, sampling, at, 3).tolist() == [[min(tied)]]


@pytest.mark.parametrize(("top_k", "top_p"), [(2, 0.5), (5, 0.7), (20, 0.9), (0, 0.9), (7, 1.0)])
def test_top_p_is_of_what_top_k_leaves_as_in_transformers(top_k: int, top_p: float) -> None:
    logits, params = logits_for(1, 40, seed=top_k)[0, :1], SamplingParams(1.0, top_k, top_p, 3)
    kept = logits
    if top_k:
        kept = TopKLogitsWarper(top_k)(torch.zeros(1, 1, dtype=torch.int64), kept)
    if top_p < 1:
        kept = TopPLogitsWarper(top_p)(torch.zeros(1, 1, dtype=torch.int64), kept)
    expected = torch.isfinite(kept[0])
    assert allowed(logits[0].numpy(), params).tolist() == expected.tolist()
    positions = torch.arange(4000, dtype=torch.int32)[None]
    chosen = choose_truncated(logits.expand(1, 4000, -1), Sampling.of([params], CPU), positions)
    assert set(chosen[0].tolist()) <= set(expected.nonzero()[:, 0].tolist())


def test_top_p_ends_at_the_token_whose_mass_reaches_it() -> None:
    """A token is left out if the mass before it equals top_p. Masses are as floats have them."""
    scores = -math.log(2) * torch.arange(4.0)
    mass = torch.exp(scores - torch.log(torch.exp(scores).sum()))
    before = (torch.cumsum(mass, -1) - mass).tolist()
    logits, positions = scores.expand(1, 500, 4), torch.arange(500, dtype=torch.int32)[None]
    for kept in (1, 2, 3):
        sampling = Sampling.of([SamplingParams(1.0, top_p=before[kept], seed=3)], CPU)
        chosen = choose_truncated(logits, sampling, positions)[0].tolist()
        assert set(chosen) == set(range(kept))


@pytest.mark.parametrize("size", [300, 20_000])
def test_both_arithmetics_choose_and_rank_the_same(size: int) -> None:
    rows, sampling = len(MIXTURE), Sampling.of(MIXTURE, CPU)
    logits, at = logits_for(rows, size, seed=5), positions_for(rows)
    host, engines = (choose_mixed(logits, sampling, at, 3, by) for by in (HOST, ENGINES))
    assert host.tolist() == engines.tolist()
    host, engines = (rank(logits, sampling, at, 8, by)[0] for by in (HOST, ENGINES))
    assert host.tolist() == engines.tolist()


@pytest.mark.parametrize("size", [16, 17, 31, 64, 100, 333])
def test_the_greatest_scores_are_found_in_pieces(size: int) -> None:
    scores = coarse(torch.randn(3, 2, size, generator=torch.Generator().manual_seed(size)))
    best, ids = top_in_stages(scores, 8, widest=16)
    assert best.equal(scores.topk(8).values)
    assert torch.gather(scores, -1, ids.long()).equal(best)
    assert all(len(set(row)) == 8 for row in ids.flatten(0, 1).tolist())


def any_order(seed: int) -> Arithmetic:
    """A machine whose searches find equal scores by chance."""
    generator = torch.Generator().manual_seed(seed)

    def by_chance(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
        order = torch.randperm(scores.shape[-1], generator=generator)
        best, places = top(scores[..., order], k)
        return best, order.to(torch.int32)[places.long()]

    return HOST._replace(top=by_chance)


@pytest.mark.covering(1)
@pytest.mark.parametrize("spread", [1.0, 3.0])
@pytest.mark.parametrize("params", CUT, ids=str)
def test_no_choice_depends_on_the_order_of_equals(params: SamplingParams, spread: float) -> None:
    rows = [
        replace(params, top_p=top_p, seed=seed)
        for seed in range(10)
        for top_p in (params.top_p, 0.9999)
    ]
    logits, at = coarse(logits_for(20, 2000, seed=6, spread=spread)), positions_for(20)
    sampling = Sampling.of(rows, CPU)
    expected = choose_truncated(logits, sampling, at).tolist()
    for seed in range(3):
        by = any_order(seed)
        assert choose_truncated(logits, sampling, at, by).tolist() == expected
        assert choose_mixed(logits, sampling, at, 3, by).tolist() == expected


def test_equal_scores_on_both_sides_of_the_candidates_limit_are_no_candidates() -> None:
    logits = torch.full((1, 1, 1000), -5.0)
    logits[..., 300:400], logits[..., 500:700] = 3.0, 2.9
    for seed in range(20):
        sampling = Sampling.of([SamplingParams(1.0, 0, 0.99, seed)], CPU)
        assert 300 <= choose_truncated(logits, sampling, AT[:, :1]).item() < 400
    logits[..., 656:] = -5.0  # 100 and 156: all of them are candidates
    chosen = [
        choose_truncated(logits, Sampling.of([params], CPU), AT[:, :1]).item()
        for params in (SamplingParams(1.0, 0, 0.99, seed) for seed in range(20))
    ]
    assert max(chosen) >= 500


@pytest.mark.parametrize(
    ("equal", "several"), [(CANDIDATES, True), (CANDIDATES + 1, False), (800, False)]
)
def test_of_too_many_best_tokens_the_lowest_id_is_chosen(equal: int, several: bool) -> None:
    logits = torch.zeros(1, 1, 1000)
    logits[..., 100 : 100 + equal] = 1.0
    chosen = {
        choose_truncated(logits, Sampling.of([params], CPU), AT[:, :1], any_order(7)).item()
        for params in (SamplingParams(1.0, 50, seed=seed) for seed in range(20))
    }
    assert (chosen != {100}) is several


def test_children_with_equal_scores_come_in_the_order_of_their_ids() -> None:
    logits = torch.tensor([1.0, 3, 2, 3, 2, 3]).view(1, 1, 6)
    sampling = Sampling.of([SamplingParams()], CPU)
    for seed in range(5):
        ids, scores = rank(logits, sampling, AT[:, :1], 5, any_order(seed))
        assert ids[0, 0].tolist() == [1, 3, 5, 2, 4]
        assert scores[0, 0].equal(scores[0, 0].sort(descending=True).values)


def test_ranked_scores_are_log_probabilities_plus_the_noise() -> None:
    params = SamplingParams(0.7, seed=9)
    logits = logits_for(1, 50, seed=11)
    ids, scores = rank(logits, Sampling.of([params], CPU), AT, 50)
    for node in range(4):
        weights = np.exp(logits[0, node].numpy().astype(np.float64) / np.float32(0.7))
        expected = [
            math.log(weights[token] / weights.sum())
            + exact_gumbel(threefry((9, 0), (token, int(AT[0, node])))[0])
            for token in ids[0, node].tolist()
        ]
        assert sorted(ids[0, node].tolist()) == list(range(50))
        assert scores[0, node].tolist() == pytest.approx(expected, abs=1e-4)


def test_tokens_that_top_k_or_top_p_exclude_rank_behind_all_others() -> None:
    logits = torch.tensor([0.05, 0.5, 0.25, 0.2]).log().view(1, 1, 4)
    for seed in range(50):
        for params in (SamplingParams(1.0, 2, seed=seed), SamplingParams(1.0, 0, 0.7, seed=seed)):
            ids, scores = rank(logits, Sampling.of([params], CPU), AT[:, :1], 4)
            assert set(ids[0, 0, :2].tolist()) == {1, 2}
            assert scores[0, 0, 1] > -100
            assert scores[0, 0, 2] < -1e8
            assert torch.isfinite(scores).all()


def test_at_temperature_0_ranked_scores_are_log_probabilities_whatever_top_k_and_top_p() -> None:
    logits = logits_for(3, 500, seed=5)
    params = [SamplingParams(), SamplingParams(top_k=1), SamplingParams(top_p=0.4)]
    ids, scores = rank(logits, Sampling.of(params, CPU), positions_for(3), 8)
    expected = torch.log_softmax(logits, -1).topk(8)
    for found, values in ((ids, scores), rank_greedy(logits, 8)):
        assert found.tolist() == expected.indices.tolist()
        torch.testing.assert_close(values, expected.values)
