"""The noise: words by known answers and big integers, floats by decimals, on both arithmetics."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from inference.model.choice.arithmetic import (
    from_limbs,
    gumbel,
    gumbel_by_series,
    left,
    noise,
    noise_in_limbs,
    right,
    threefry_in_limbs,
)
from inference.model.choice.sampler import Sampling
from inference.sampling import SamplingParams, threefry2x32
from tests.support.oracles import PINNED, PUBLISHED, WORD, exact_gumbel, int32, seed_words, threefry

Words = tuple[Tensor, Tensor]


def words(key: Words, counter: Words) -> Words:
    """threefry2x32() on tensors."""
    return threefry2x32(key, counter, left, right)


def joined(key: Words, counter: Words) -> Words:
    """threefry_in_limbs() with its results joined."""
    x, y = threefry_in_limbs(key, counter)
    return from_limbs(x), from_limbs(y)


def blocks() -> list[list[int]]:
    """Keys and counters: published ones, extreme ones, and others."""
    published = [[*key, *counter] for counter, key, _ in PUBLISHED]
    extremes = [[0, 0, WORD - 1, WORD // 2], [WORD // 2, WORD // 2 - 1, 0, WORD - 1]]
    return published + extremes + np.random.default_rng(0).integers(0, WORD, (200, 4)).tolist()


@pytest.mark.parametrize("block", [words, joined], ids=["words", "limbs"])
def test_threefry_is_as_published(block: Callable[[Words, Words], Words]) -> None:
    k0, k1, c0, c1 = (int32(*column) for column in zip(*blocks(), strict=True))
    x, y = block((k0, k1), (c0, c1))
    found = [(a % WORD, b % WORD) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    assert found == [threefry((a, b), (c, d)) for a, b, c, d in blocks()]
    assert found[: len(PUBLISHED)] == [answer for _, _, answer in PUBLISHED]


@pytest.mark.parametrize("draw", [noise, noise_in_limbs], ids=["words", "limbs"])
@pytest.mark.parametrize(("seed", "position", "token", "bits", "value"), PINNED)
def test_the_noise_is_pinned(
    seed: int,
    position: int,
    token: int,
    bits: int,
    value: float,
    draw: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> None:
    key, at, of = seed_words(seed), int32(position)[0], int32(token)[0]
    given = Sampling.of([SamplingParams(1.0, seed=seed)], torch.device("cpu"))
    assert given.seed[0].tolist() == [int(word) for word in key]
    assert words((key[0], key[1]), (of, at))[0].item() % WORD == bits
    assert threefry((seed % WORD, seed >> 32), (token, position))[0] == bits
    drawn = draw(key, at, of).item()
    assert drawn == pytest.approx(value, abs=2e-6)
    assert drawn == pytest.approx(exact_gumbel(bits), abs=2e-6)


@pytest.mark.parametrize("function", [gumbel, gumbel_by_series], ids=["log", "series"])
def test_each_value_of_the_noise_is_right(function: Callable[[Tensor], Tensor]) -> None:
    """All 2**23 of them. exp(-noise) is -log(u), whose relative error is the noise's absolute."""
    drawn = function(torch.arange(2**23, dtype=torch.int32))
    exact = -np.log(-np.log1p(-(np.arange(2**23, 0, -1) - 0.5) * 2.0**-23))
    assert drawn.isfinite().all()
    assert (drawn[1:] >= drawn[:-1]).all()
    assert np.abs(drawn.numpy() - exact).max() < 6e-7


def test_the_series_needs_no_exact_logarithm_near_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """With logarithms that are off by 4e-7, which is 0 for the greatest u, it stays near."""
    upper = torch.cat([2**23 - 1 - 2 ** torch.arange(16), torch.tensor([2**23 - 1, 0])]).int()
    right = gumbel(upper)
    honest = torch.log

    def coarse(x: Tensor) -> Tensor:
        return (honest(x) / 4e-7).round() * 4e-7

    monkeypatch.setattr(torch, "log", coarse)
    torch.testing.assert_close(gumbel_by_series(upper), right, atol=2e-5, rtol=0)
    assert not gumbel(upper).isfinite().all()
