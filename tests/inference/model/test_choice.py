"""The sampling contract: the noise by known answers, the sampler by its distribution against a
float64 softmax.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, getcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inference.model.sampler import (
    Sampling,
    add_in_halves,
    choose_greedy,
    choose_mixed,
    choose_open,
    choose_truncated,
    noise,
    rank,
    rank_greedy,
    threefry2x32,
)
from inference.sampling import SamplingParams

torch.set_num_threads(1)
CPU = torch.device("cpu")
WORD = 2**32
Chooser = Callable[[Tensor, Sampling, Tensor], Tensor]


def int32(*words: int) -> Tensor:
    """Unsigned 32-bit words as an int32 tensor."""
    return torch.tensor(
        [word - WORD if word >= WORD // 2 else word for word in words], dtype=torch.int32
    )


# --- the integers
# --------------------------------------------------------------------------------------------------


def threefry_rounds(key: tuple[int, int]) -> list[tuple[str, int, int]]:
    """Threefry-2x32-13 as a list of steps on Python integers: ("key", a, b) adds, ("turn", r, _)
    mixes.
    """
    parts = (key[0], key[1], 0x1BD11BDA ^ key[0] ^ key[1])
    turns = [13, 15, 26, 6, 17, 29, 16, 24, 13, 15, 26, 6, 17]
    steps = [("key", parts[0], parts[1])]
    for count, turn in enumerate(turns, start=1):
        steps.append(("turn", turn, 0))
        if count in (4, 8, 12):
            nth = count // 4
            steps.append(("key", parts[nth % 3], parts[(nth + 1) % 3] + nth))
    return steps


def oracle(key: tuple[int, int], counter: tuple[int, int]) -> tuple[int, int]:
    x, y = counter
    for kind, a, b in threefry_rounds(key):
        if kind == "key":
            x, y = (x + a) % WORD, (y + b) % WORD
        else:
            x = (x + y) % WORD
            y = (y * 2**a % WORD + y // 2 ** (32 - a)) ^ x
    return x, y


def inverse(key: tuple[int, int], block: tuple[int, int]) -> tuple[int, int]:
    """The counter that threefry turns into `block`."""
    x, y = block
    for kind, a, b in reversed(threefry_rounds(key)):
        if kind == "key":
            x, y = (x - a) % WORD, (y - b) % WORD
        else:
            y ^= x
            y = y // 2**a + y * 2 ** (32 - a) % WORD
            x = (x - y) % WORD
    return x, y


PUBLISHED = [  # Random123, tests/kat_vectors: threefry2x32 13 (counter, key, answer)
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x9D1C5EC6, 0x8BD50731)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0xFD36D048, 0x2D17272C)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xBA3E4725, 0xF27D669E)),
]
words = st.integers(0, WORD - 1)
additions = pytest.mark.parametrize("add", [torch.add, add_in_halves], ids=["native", "halves"])


@additions
@pytest.mark.parametrize(("counter", "key", "answer"), PUBLISHED)
def test_threefry_gives_the_published_answers(
    counter: tuple[int, int],
    key: tuple[int, int],
    answer: tuple[int, int],
    add: Callable[[Tensor, Tensor], Tensor],
) -> None:
    x, y = threefry2x32((int32(key[0]), int32(key[1])), (int32(counter[0]), int32(counter[1])), add)
    assert (x.item() % WORD, y.item() % WORD) == answer
    assert oracle(key, counter) == answer


@additions
def test_threefry_equals_big_integers(add: Callable[[Tensor, Tensor], Tensor]) -> None:
    extremes = [[0, 0, WORD - 1, WORD // 2], [WORD // 2, WORD // 2 - 1, 0, WORD - 1]]
    blocks = [*extremes, *np.random.default_rng(0).integers(0, WORD, (200, 4)).tolist()]
    k0, k1, c0, c1 = (int32(*column) for column in zip(*blocks, strict=True))
    x, y = threefry2x32((k0, k1), (c0, c1), add)
    expected = [oracle((a, b), (c, d)) for a, b, c, d in blocks]
    assert [(a % WORD, b % WORD) for a, b in zip(x.tolist(), y.tolist(), strict=True)] == expected


EXTREMES = [0, 1, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFF0000, 0xFFFFFFFF]


def test_adding_in_halves_wraps_like_32_bits() -> None:
    generator = np.random.default_rng(1)
    pairs = [(a, b) for a in EXTREMES for b in EXTREMES] + [
        tuple(pair) for pair in generator.integers(0, WORD, (5000, 2)).tolist()
    ]
    a, b = (int32(*column) for column in zip(*pairs, strict=True))
    assert [word % WORD for word in add_in_halves(a, b).tolist()] == [
        (x + y) % WORD for x, y in pairs
    ]


class Watched:
    """An integer that remembers the greatest sum it was part of."""

    greatest = 0
    device = None

    def __init__(self, value: int) -> None:
        self.value = value

    def __add__(self, other: Watched) -> Watched:
        assert min(self.value, other.value) >= 0
        Watched.greatest = max(Watched.greatest, self.value + other.value)
        return Watched(self.value + other.value)

    def __and__(self, mask: int) -> Watched:
        return Watched(self.value & mask)

    def __or__(self, other: Watched) -> Watched:
        return Watched(self.value | other.value)

    @classmethod
    def __torch_function__(
        cls, shift: object, types: object, args: tuple[Watched, torch.Tensor], kwargs: object = None
    ) -> Watched:
        value, by = args[0].value, int(args[1])
        return Watched(
            {torch.bitwise_left_shift: value << by, torch.bitwise_right_shift: value >> by}[shift]
        )


@given(a=words, b=words)
def test_adding_in_halves_adds_nothing_above_17_bits(a: int, b: int) -> None:
    Watched.greatest = 0
    signed = [word - WORD if word >= WORD // 2 else word for word in (a, b)]
    total = add_in_halves(*(Watched(word) for word in signed))  # type: ignore[arg-type]
    assert total.value % WORD == (a + b) % WORD  # type: ignore[attr-defined]
    assert Watched.greatest < 2**17


# --- the noise
# --------------------------------------------------------------------------------------------------

PINNED = [  # seed, position, token id -> the 32 bits, the noise
    (0, 0, 0, 0x9D1C5EC6, 0.716977),
    (0, 1, 0, 0x4050E5B0, -0.323075),
    (1, 0, 0, 0x61EC2D44, 0.039780),
    (0, 0, 1, 0xFDDDAD3B, 4.782960),
    (42, 7, 151935, 0xDE73237F, 1.962717),
    (2**32, 7, 3, 0xB4782333, 1.050917),
    (0xDEADBEEF, 2048, 31999, 0x5D4D9A6E, -0.009280),
    (123456789012345678, 511, 2, 0x6E7BC05C, 0.173982),
    (2**63 - 1, 131071, 128255, 0xA37B1D36, 0.801888),
]


def exact_gumbel(bits: int) -> float:
    """-ln(-ln(u)) of the contract's u, in 40 digits."""
    getcontext().prec = 40
    uniform = (Decimal(bits >> 9) + Decimal("0.5")) / 2**23
    return float(-(-uniform.ln()).ln())


def seed_words(seed: int) -> Tensor:
    return int32(seed % WORD, seed >> 32)


@pytest.mark.parametrize(("seed", "position", "token", "bits", "value"), PINNED)
def test_the_noise_is_pinned(seed: int, position: int, token: int, bits: int, value: float) -> None:
    key, at, of = seed_words(seed), int32(position)[0], int32(token)[0]
    assert threefry2x32((key[0], key[1]), (of, at))[0].item() % WORD == bits
    assert oracle((seed % WORD, seed >> 32), (token, position))[0] == bits
    drawn = noise(key, at, of).item()
    assert drawn == pytest.approx(value, abs=2e-6)
    assert drawn == pytest.approx(exact_gumbel(bits), abs=2e-6)


@pytest.mark.parametrize("seed", [0, 42, 2**63 - 1])
@pytest.mark.parametrize(
    ("word", "value"),
    [
        (0x00000000, -2.811541),
        (0x000001FF, -2.811541),
        (0xFFFFFE00, 16.635532),
        (0xFFFFFFFF, 16.635532),
    ],
)
def test_the_noise_is_finite_at_the_extreme_bits(seed: int, word: int, value: float) -> None:
    token, position = inverse((seed % WORD, seed >> 32), (word, 0x12345678))
    drawn = noise(seed_words(seed), int32(position)[0], int32(token)[0])
    assert drawn.item() == pytest.approx(value, abs=2e-6)
    assert exact_gumbel(word) == pytest.approx(value, abs=1e-6)


def test_the_seed_of_the_parameters_reaches_the_noise_as_its_low_and_high_word() -> None:
    sampling = Sampling.of([SamplingParams(1.0, seed=0x7654321089ABCDEF)], CPU)
    assert [word % WORD for word in sampling.seed[0].tolist()] == [0x89ABCDEF, 0x76543210]


def pairs_are_independent(first: np.ndarray, second: np.ndarray, kinds: int) -> bool:
    """Chi-square of two streams of uniform choices against kinds x kinds equal cells."""
    counts = np.bincount(first * kinds + second, minlength=kinds * kinds)
    expected = len(first) / (kinds * kinds)
    return float(((counts - expected) ** 2 / expected).sum()) < chi_square_limit(kinds * kinds - 1)


def choices_among_equals(
    seeds: list[int], positions: list[int], kinds: int = 16
) -> np.ndarray:  # [seeds, positions]
    sampling = Sampling.of([SamplingParams(1.0, seed=seed) for seed in seeds], CPU)
    at = torch.tensor(positions, dtype=torch.int32).expand(len(seeds), -1)
    return np.asarray(
        choose_open(
            torch.zeros(len(seeds), len(positions), kinds),
            sampling,
            at,
            max(positions) - min(positions) + 1,
        )
    )


def test_choices_at_neighbouring_positions_and_seeds_are_independent() -> None:
    table = choices_among_equals(list(range(200)), list(range(100, 200)))
    assert pairs_are_independent(table[:, :-1].ravel(), table[:, 1:].ravel(), 16)
    assert pairs_are_independent(table[:-1].ravel(), table[1:].ravel(), 16)
    assert not pairs_are_independent(table.ravel(), table.ravel(), 16)


def test_seeds_that_differ_in_their_high_word_only_are_independent() -> None:
    low = choices_among_equals(list(range(200)), list(range(100)))
    high = choices_among_equals([seed + 2**32 for seed in range(200)], list(range(100)))
    assert pairs_are_independent(low.ravel(), high.ravel(), 16)


# --- the distribution
# -------------------------------------------------------------------------------------------------


def chi_square_limit(freedom: int) -> float:
    """The chi-square that chance passes about once in 300,000 tests (Wilson and Hilferty's
    approximation, 4.5 deviations).
    """
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + 4.5 * math.sqrt(spread)) ** 3


def expected_probabilities(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """What a sampler must give: softmax at T in float64, the best top_k, the fewest of the best
    whose mass reaches top_p, at most 256.
    """
    weights = np.exp(logits.astype(np.float64) / params.temperature)
    full = weights / weights.sum()
    order = sorted(range(len(full)), key=lambda token: -full[token])
    kept, mass = [], 0.0
    for token in order[: params.top_k or (256 if params.top_p < 1 else len(order))]:
        kept.append(token)
        mass += full[token]
        if params.top_p < 1 and mass >= params.top_p:
            break
    result: np.ndarray = np.zeros_like(full)
    result[kept] = full[kept] / full[kept].sum()
    return result


def draws(choose: Chooser, logits: np.ndarray, params: SamplingParams, count: int) -> np.ndarray:
    """`count` choices at the same logits under different seeds and positions, 50 positions a
    seed.
    """
    seeds, positions = count // 50, 50
    chosen = []
    for start in range(0, seeds, 20):
        rows = [
            SamplingParams(params.temperature, params.top_k, params.top_p, seed * 7919 + 5)
            for seed in range(start, min(start + 20, seeds))
        ]
        at = (torch.arange(positions, dtype=torch.int32) + 1000).expand(len(rows), -1)
        table = torch.from_numpy(logits).expand(len(rows), positions, -1)
        chosen.append(choose(table, Sampling.of(rows, CPU), at).numpy().ravel())
    return np.concatenate(chosen)


def follows(chosen: np.ndarray, probabilities: np.ndarray) -> bool:
    """Nothing impossible was drawn, and chi-square over tokens expected 5 times or more (the
    others as one) is within chance.
    """
    counts = np.bincount(chosen, minlength=len(probabilities)).astype(np.float64)
    if counts[probabilities == 0].any():
        return False
    expected = probabilities * len(chosen)
    common = expected >= 5
    observed = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    observed, wanted = (observed, wanted) if wanted[-1] >= 5 else (observed[:-1], wanted[:-1])
    return len(wanted) == 1 or float(((observed - wanted) ** 2 / wanted).sum()) < chi_square_limit(
        len(wanted) - 1
    )


def random_logits(size: int, spread: float) -> np.ndarray:
    return (np.random.default_rng(size).standard_normal(size) * spread).astype(np.float32)


SMALL, LARGE = random_logits(50, 1.5), random_logits(1000, 2.0)
OPEN = [SamplingParams(0.7), SamplingParams(1.0)]
CUT = [
    SamplingParams(temperature, top_k, top_p)
    for temperature in (0.7, 1.0)
    for top_k, top_p in ((5, 1.0), (40, 1.0), (0, 0.9), (0, 0.5), (20, 0.8))
]


def choose_from_all(logits: Tensor, sampling: Sampling, positions: Tensor) -> Tensor:
    return choose_open(logits, sampling, positions, 50)


def choose_from_any(logits: Tensor, sampling: Sampling, positions: Tensor) -> Tensor:
    return choose_mixed(logits, sampling, positions, 50)


@pytest.mark.parametrize("params", OPEN, ids=str)
@pytest.mark.parametrize("choose", [choose_from_all, choose_from_any])
def test_all_tokens_are_drawn_as_the_softmax_says(choose: Chooser, params: SamplingParams) -> None:
    assert follows(draws(choose, SMALL, params, 40_000), expected_probabilities(SMALL, params))


@pytest.mark.parametrize("params", OPEN, ids=str)
def test_a_vocabulary_above_the_candidates_is_drawn_as_the_softmax_says(
    params: SamplingParams,
) -> None:
    chosen = draws(choose_from_all, LARGE, params, 20_000)
    assert follows(chosen, expected_probabilities(LARGE, params))
    best = np.argsort(-LARGE)[:256]
    assert np.setdiff1d(chosen, best).size > 0  # an open choice is not cut at the candidates


@pytest.mark.parametrize("params", CUT, ids=str)
@pytest.mark.parametrize("logits", [SMALL, LARGE], ids=["50 tokens", "1000 tokens"])
def test_top_k_and_top_p_are_drawn_as_the_cut_softmax_says(
    logits: np.ndarray, params: SamplingParams
) -> None:
    assert follows(
        draws(choose_truncated, logits, params, 40_000 if len(logits) < 100 else 5_000),
        expected_probabilities(logits, params),
    )


def test_a_mixed_batch_draws_cut_rows_as_the_cut_softmax_says() -> None:
    params = SamplingParams(0.7, 20, 0.8)
    assert follows(
        draws(choose_from_any, SMALL, params, 40_000), expected_probabilities(SMALL, params)
    )


def test_a_nucleus_wider_than_the_candidates_is_cut_at_them() -> None:
    params = SamplingParams(1.0, 0, 0.999)
    flat = random_logits(1000, 0.5)
    chosen = draws(choose_truncated, flat, params, 5_000)
    assert follows(chosen, expected_probabilities(flat, params))
    assert np.setdiff1d(chosen, np.argsort(-flat)[:256]).size == 0


# Wrong samplers: the checks above must see each of them at the same number of draws.


def temperature_on_the_noise(logits: Tensor, sampling: Sampling, positions: Tensor) -> Tensor:
    """argmax of (logit + noise) / T: as if T were 1."""
    return choose_open(
        logits, sampling._replace(temperature=torch.ones_like(sampling.temperature)), positions, 50
    )


def noise_of_half_the_bits(logits: Tensor, sampling: Sampling, positions: Tensor) -> Tensor:
    """u with 5 bits instead of 23: no tails."""
    drawn = noise(
        sampling.seed[:, None, None],
        positions[:, :, None],
        torch.arange(logits.shape[-1], dtype=torch.int32),
    )
    uniform = (torch.floor(torch.exp(-torch.exp(-drawn)) * 32) + 0.5) / 32
    return (sampling.scaled(logits) - torch.log(-torch.log(uniform))).argmax(-1).to(torch.int32)


def mass_after_top_k(logits: Tensor, sampling: Sampling, positions: Tensor) -> Tensor:
    """top-p of the mass that top-k leaves, not of the full softmax."""
    least = logits.topk(20).values[..., -1:]
    return choose_truncated(torch.where(logits >= least, logits, -100.0), sampling, positions)


def without_the_crossing_token(logits: Tensor, sampling: Sampling, positions: Tensor) -> Tensor:
    """top-p keeping only tokens whose mass stays below it."""
    scaled, ids = torch.sort(sampling.scaled(logits), dim=-1, descending=True)
    kept = torch.cumsum(torch.softmax(scaled, -1), -1) < sampling.top_p[:, None, None]
    drawn = noise(sampling.seed[:, None, None], positions[:, :, None], ids.to(torch.int32))
    best = torch.where(kept, scaled + drawn, -1e9).argmax(-1, keepdim=True)
    return torch.gather(ids, -1, best)[..., 0].to(torch.int32)


def mass_at_temperature_1(logits: Tensor, sampling: Sampling, positions: Tensor) -> Tensor:
    """top-p of the softmax before the temperature."""
    mass, ids = torch.sort(torch.softmax(logits, -1), dim=-1, descending=True)
    kept = torch.cumsum(mass, -1) - mass < sampling.top_p[:, None, None]
    drawn = noise(sampling.seed[:, None, None], positions[:, :, None], ids.to(torch.int32))
    best = torch.where(kept, torch.gather(sampling.scaled(logits), -1, ids) + drawn, -1e9).argmax(
        -1, keepdim=True
    )
    return torch.gather(ids, -1, best)[..., 0].to(torch.int32)


@pytest.mark.parametrize(
    ("wrong", "params"),
    [
        (temperature_on_the_noise, SamplingParams(0.7)),
        (noise_of_half_the_bits, SamplingParams(1.0)),
        (mass_after_top_k, SamplingParams(1.0, 20, 0.8)),
        (without_the_crossing_token, SamplingParams(1.0, 0, 0.9)),
        (mass_at_temperature_1, SamplingParams(0.7, 0, 0.9)),
    ],
)
def test_the_check_sees_a_wrong_sampler(wrong: Chooser, params: SamplingParams) -> None:
    assert not follows(draws(wrong, SMALL, params, 40_000), expected_probabilities(SMALL, params))


# --- one contract
# --------------------------------------------------------------------------------------------------

AT = torch.tensor([[9, 10, 10, 11]], dtype=torch.int32)
MIXTURE = [
    SamplingParams(),
    SamplingParams(1.0, seed=3),
    SamplingParams(0.7, 5, 0.9, seed=4),
    SamplingParams(0, 3, 0.5, seed=5),
    SamplingParams(0.7, seed=2**40 + 1),
]


def logits_for(rows: int, size: int, seed: int, spread: float = 3.0) -> Tensor:
    return torch.randn(rows, 4, size, generator=torch.Generator().manual_seed(seed)) * spread


def positions_for(rows: int) -> Tensor:
    return AT + 5 * torch.arange(rows, dtype=torch.int32)[:, None]


def every_choice(logits: Tensor, params: SamplingParams) -> list[list[int]]:
    """What each choose function says of the only row, flattened."""
    sampling, at = Sampling.of([params], CPU), AT[:, : logits.shape[1]]
    found = [choose_mixed(logits, sampling, at, 3)]
    if params.truncated:
        found.append(choose_truncated(logits, sampling, at))
    if params.greedy:
        found.append(choose_greedy(logits))
    if params.greedy or not params.truncated:
        found.append(choose_open(logits, sampling, at, 3))
    return [ids.flatten().tolist() for ids in found]


def test_at_temperature_0_every_choice_is_the_argmax() -> None:
    logits = logits_for(1, 300, seed=1)
    expected = [int(np.argmax(row)) for row in logits[0].numpy()]
    assert every_choice(logits, SamplingParams()) == [expected] * 4


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
    assert every_choice(logits, params) == [[min(tied)]] * 4


def test_tokens_that_tie_with_the_last_kept_one_are_kept_whatever_their_order() -> None:
    probabilities = np.array([0.4, 0.15, 0.15, 0.15, 0.1, 0.05])
    for params in (SamplingParams(1.0, top_k=2), SamplingParams(1.0, top_p=0.5)):
        for order in ([0, 1, 2, 3, 4, 5], [5, 3, 0, 2, 1, 4]):
            logits = np.log(probabilities[order]).astype(np.float32)
            kept = np.where(probabilities[order] >= 0.15, probabilities[order], 0)
            assert follows(draws(choose_truncated, logits, params, 5_000), kept / kept.sum())


def test_rows_of_a_batch_do_not_depend_on_each_other() -> None:
    rows = len(MIXTURE)
    logits, at = logits_for(rows, 300, seed=2), positions_for(rows)
    together = choose_mixed(logits, Sampling.of(MIXTURE, CPU), at, 3)
    for row, params in enumerate(MIXTURE):
        alone = choose_mixed(
            logits[row : row + 1], Sampling.of([params], CPU), at[row : row + 1], 3
        )
        assert together[row].tolist() == alone[0].tolist()
    turned = choose_mixed(logits.flip(0), Sampling.of(MIXTURE[::-1], CPU), at.flip(0), 3)
    assert turned.flip(0).tolist() == together.tolist()


def test_a_node_chooses_the_same_alone_as_among_others() -> None:
    logits, params = logits_for(1, 300, seed=3), SamplingParams(1.0, seed=8)
    sampling = Sampling.of([params], CPU)
    together = choose_open(logits, sampling, AT, 3)[0].tolist()
    alone = [
        choose_open(logits[:, node : node + 1], sampling, AT[:, node : node + 1], 1).item()
        for node in range(4)
    ]
    assert together == alone


def test_nodes_of_one_position_share_their_noise() -> None:
    logits = logits_for(1, 300, seed=4)[:, :1].expand(-1, 4, -1)
    chosen = choose_open(logits, Sampling.of([SamplingParams(1.0, seed=1)], CPU), AT, 3)[0].tolist()
    assert chosen[1] == chosen[2]
    assert len(set(chosen)) == 3


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**63 - 1),
    spread=st.sampled_from([0.01, 1.0, 5.0, 30.0, 300.0]),
    temperatures=st.lists(st.sampled_from([0.0, 0.3, 0.7, 1.0, 2.0]), min_size=1, max_size=3),
)
def test_the_choice_is_the_best_of_logits_over_temperature_plus_noise(
    seed: int, spread: float, temperatures: list[float]
) -> None:
    rows = len(temperatures)
    logits, at = logits_for(rows, 400, seed % 1000, spread), positions_for(rows)
    chosen = choose_open(
        logits,
        Sampling.of([SamplingParams(temperature, seed=seed) for temperature in temperatures], CPU),
        at,
        3,
    )
    ids = torch.arange(400, dtype=torch.int32)
    for row, temperature in enumerate(temperatures):
        for node in range(4):
            gumbel = noise(seed_words(seed), at[row, node], ids).double() if temperature else 0.0
            scores = logits[row, node].double() / (temperature or 1.0) + gumbel
            assert scores[chosen[row, node]] >= scores.max() - 1e-6 * max(1.0, spread)


@additions
def test_halved_additions_choose_the_same(add: Callable[[Tensor, Tensor], Tensor]) -> None:
    logits, sampling, at = logits_for(5, 300, seed=5), Sampling.of(MIXTURE, CPU), positions_for(5)
    assert (
        choose_mixed(logits, sampling, at, 3, add).tolist()
        == choose_mixed(logits, sampling, at, 3).tolist()
    )


# --- the draft's ranking
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(1.0, seed=6),
        SamplingParams(0.7, 40, seed=7),
        SamplingParams(0.7, 0, 0.8, seed=8),
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [50, 1000])
def test_the_first_ranked_child_is_what_a_target_with_these_logits_chooses(
    params: SamplingParams, size: int
) -> None:
    for trial in range(20):
        logits, sampling = (
            logits_for(1, size, seed=100 + trial, spread=4.0),
            Sampling.of([params], CPU),
        )
        ids, scores = rank(logits, sampling, AT + trial, 8)
        assert ids[0, :, 0].tolist() == choose_mixed(logits, sampling, AT + trial, 3)[0].tolist()
        assert (scores[..., :-1] >= scores[..., 1:]).all()


def test_ranked_scores_are_log_probabilities_plus_the_noise() -> None:
    params = SamplingParams(0.7, seed=9)
    logits = logits_for(1, 50, seed=11)
    ids, scores = rank(logits, Sampling.of([params], CPU), AT, 50)
    for node in range(4):
        weights = np.exp(logits[0, node].numpy().astype(np.float64) / np.float32(0.7))
        expected = [
            math.log(weights[token] / weights.sum())
            + exact_gumbel(oracle((9, 0), (token, int(AT[0, node])))[0])
            for token in ids[0, node].tolist()
        ]
        assert sorted(ids[0, node].tolist()) == list(range(50))
        assert scores[0, node].tolist() == pytest.approx(expected, abs=1e-4)


def test_at_temperature_0_ranked_scores_are_log_probabilities_whatever_top_k_and_top_p() -> None:
    probabilities = np.array([0.05, 0.5, 0.25, 0.2], dtype=np.float64)
    logits = torch.from_numpy(np.log(probabilities) + 7).float().view(1, 1, 4)
    for params in (SamplingParams(), SamplingParams(top_k=1), SamplingParams(top_p=0.4)):
        ids, scores = rank(logits, Sampling.of([params], CPU), AT[:, :1], 4)
        assert ids[0, 0].tolist() == [1, 2, 3, 0]
        assert scores[0, 0].tolist() == pytest.approx(
            np.log([0.5, 0.25, 0.2, 0.05]).tolist(), abs=1e-5
        )


def test_tokens_that_top_k_or_top_p_exclude_rank_behind_all_others() -> None:
    logits = torch.from_numpy(np.log(np.array([0.05, 0.5, 0.25, 0.2]))).float().view(1, 1, 4)
    for seed in range(50):
        for params in (SamplingParams(1.0, 2, seed=seed), SamplingParams(1.0, 0, 0.7, seed=seed)):
            ids, scores = rank(logits, Sampling.of([params], CPU), AT[:, :1], 4)
            assert set(ids[0, 0, :2].tolist()) == {1, 2}
            assert scores[0, 0, 1] > -100
            assert scores[0, 0, 2] < -1e8
            assert torch.isfinite(scores).all()


def test_a_greedy_draft_ranks_as_any_row_at_temperature_zero_does() -> None:
    logits = torch.randn(2, 3, 500, generator=torch.Generator().manual_seed(5))
    sampling = Sampling.of([SamplingParams()] * 2, CPU)
    ids, scores = rank(logits, sampling, torch.full((2, 3), 9, dtype=torch.int32), 8)
    greedy_ids, greedy_scores = rank_greedy(logits, 8)
    assert torch.equal(ids, greedy_ids)
    torch.testing.assert_close(scores, greedy_scores)
