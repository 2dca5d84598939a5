"""The central fact: output equals the target's own seeded decoding, whatever is drafted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from itertools import islice

import numpy as np
import pytest
import torch

from inference import scheduler
from inference.decode import Step, Verifier, decode
from inference.drafters.model import ModelDrafter
from inference.engine import Engine
from inference.local import LocalVerifier
from inference.model.decoder import Decoder
from inference.policy import BestFirst, Chain, Policy, Static
from inference.sampling import SamplingParams
from tests.equality import NearTies, assert_same_text, full_logits
from tests.pairs import VOCABULARY, decoder, drafter, engine, perturbed

SAMPLINGS = [
    SamplingParams(),
    SamplingParams(0.7, seed=11),
    SamplingParams(1.0, seed=2**62 + 12345),
    SamplingParams(0.7, top_p=0.9, seed=13),
    SamplingParams(1.0, top_p=0.9, seed=14),
    SamplingParams(1.0, top_k=20, seed=15),
]
POLICIES: list[Policy] = [Chain(4), Static((0.5, 0.2, 0.1), 12, 4), BestFirst(16, 5)]
DRAFTS = {"close": perturbed(1, 0.02), "unrelated": decoder(99, layers=1)}


def prompt_of(length: int) -> list[int]:
    return np.random.default_rng(length).integers(0, VOCABULARY, length).tolist()


def alone(
    verifier: Verifier, prompt: Sequence[int], params: SamplingParams, tokens: int
) -> list[int]:
    verifier.open(prompt, params).result()
    try:
        return list(verifier.generate(tokens, frozenset()))
    finally:
        verifier.close()


def speculated(
    verifier: Verifier,
    draft: ModelDrafter,
    prompt: Sequence[int],
    params: SamplingParams,
    tokens: int,
) -> list[int]:
    try:
        return [
            token
            for step in decode(prompt, params, draft, verifier, tokens)
            for token in step.tokens
        ]
    finally:
        verifier.close()


@pytest.mark.parametrize(
    "params", SAMPLINGS, ids=lambda params: f"T{params.temperature}-p{params.top_p}-k{params.top_k}"
)
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
@pytest.mark.parametrize("draft", DRAFTS)
def test_output_equals_the_targets_own_seeded_decoding(
    target: Decoder,
    served: Engine,
    ties: NearTies,
    params: SamplingParams,
    policy: Policy,
    draft: str,
) -> None:
    for length, tokens in ((1, 40), (300, 25)):
        prompt, verifier = prompt_of(length), LocalVerifier(served)
        reference = alone(verifier, prompt, params, tokens)

        def produce(prompt: Sequence[int], n: int, verifier: Verifier = verifier) -> list[int]:
            return speculated(verifier, drafter(DRAFTS[draft], policy), prompt, params, n)

        assert_same_text(target, prompt, params, reference, produce, ties)


@pytest.mark.parametrize(
    "params", SAMPLINGS, ids=lambda params: f"T{params.temperature}-p{params.top_p}-k{params.top_k}"
)
def test_the_targets_own_decoding_is_what_a_plain_float64_sampler_chooses(
    target: Decoder, served: Engine, params: SamplingParams
) -> None:
    """A second method: full passes without cache, numpy sorting, big-integer Threefry and float64 logarithms."""
    prompt = prompt_of(20)
    made = alone(LocalVerifier(served), prompt, params, 30)
    tokens = list(prompt)
    for ours in made:
        logits = full_logits(target, tokens)[-1].double().numpy()
        assert ours == oracle(logits, params, len(tokens))
        tokens.append(ours)


def oracle(logits: np.ndarray, params: SamplingParams, position: int) -> int:
    if params.temperature == 0:
        return int(logits.argmax())
    scaled = logits / params.temperature
    mass = np.exp(scaled - scaled.max())
    mass /= mass.sum()
    order = np.argsort(-mass, kind="stable")
    allowed = set(range(len(logits)))
    if params.top_k or params.top_p < 1:
        allowed = set(order[:256].tolist())
    if params.top_k:
        allowed &= set(order[: params.top_k].tolist())
    if params.top_p < 1:
        before = np.cumsum(mass[order]) - mass[order]
        allowed &= set(order[before < params.top_p].tolist())
    return max(
        allowed, key=lambda token: (scaled[token] + gumbel(params.seed, position, token), -token)
    )


def gumbel(seed: int, position: int, token: int) -> float:
    uniform = ((threefry13(seed & 0xFFFFFFFF, seed >> 32, token, position) >> 9) + 0.5) / 2**23
    return float(-np.log(-np.log(uniform)))


def threefry13(key0: int, key1: int, x: int, y: int) -> int:
    word, keys = 0xFFFFFFFF, (key0, key1, key0 ^ key1 ^ 0x1BD11BDA)
    x, y = (x + keys[0]) & word, (y + keys[1]) & word
    for turn, bits in enumerate([13, 15, 26, 6, 17, 29, 16, 24, 13, 15, 26, 6, 17]):
        x = (x + y) & word
        y = ((y << bits) & word | y >> (32 - bits)) ^ x
        if turn % 4 == 3:
            n = turn // 4 + 1
            x, y = (x + keys[n % 3]) & word, (y + keys[(n + 1) % 3] + n) & word
    return x


def test_a_draft_with_the_targets_weights_is_always_accepted(
    monkeypatch: pytest.MonkeyPatch, target: Decoder, served: Engine
) -> None:
    monkeypatch.setattr(
        scheduler, "LEAST_SAVED", math.inf
    )  # no tree is cut, however long a forward takes on a busy machine
    for params in (
        SamplingParams(),
        SamplingParams(1.0, seed=3),
        SamplingParams(1.0, top_p=0.9, seed=3),
    ):
        with closing(LocalVerifier(served)) as verifier:
            steps = decode(prompt_of(9), params, drafter(target, Chain(4)), verifier, 40)
            assert [len(step.verdict.path) for step in steps] == [4] * 8
    assert served.free_rows == served.model.rows


def test_shared_noise_keeps_a_close_draft_accepted_at_temperature_one() -> None:
    """With fresh noise two samplers of this flat target would agree on a few per cent of tokens."""
    served = engine(decoder(1))
    steps = list(
        decode(
            prompt_of(9),
            SamplingParams(1.0, seed=3),
            drafter(DRAFTS["close"], Chain(1)),
            LocalVerifier(served),
            120,
        )
    )
    accepted = sum(len(step.verdict.path) for step in steps)
    assert accepted / len(steps) > 0.5


@pytest.mark.parametrize("tokens", [1, 2, 3, 7])
def test_exactly_the_tokens_asked_for_are_made(tokens: int) -> None:
    served = engine(decoder(1))
    verifier = LocalVerifier(served)
    reference = alone(verifier, prompt_of(5), SamplingParams(), tokens)
    assert (
        speculated(
            verifier,
            drafter(DRAFTS["close"], BestFirst(16, 5)),
            prompt_of(5),
            SamplingParams(),
            tokens,
        )
        == reference
    )
    assert len(reference) == tokens


def test_a_session_may_fill_its_sequence_length_to_the_last_token() -> None:
    served = engine(decoder(1))
    prompt = prompt_of(served.sequence_length - 6)
    reference = alone(LocalVerifier(served), prompt, SamplingParams(), 6)
    assert (
        speculated(
            LocalVerifier(served), drafter(DRAFTS["close"], Chain(4)), prompt, SamplingParams(), 6
        )
        == reference
    )


def test_output_depends_on_prompt_parameters_and_target_only() -> None:
    """Not on the row, on what the row held before, or on the drafter; but on the seed it does."""
    served, params = engine(decoder(1), rows=2), SamplingParams(1.0, seed=8)
    first = alone(LocalVerifier(served), prompt_of(12), params, 30)
    held = LocalVerifier(served)
    held.open(prompt_of(40), params).result()
    assert alone(LocalVerifier(served), prompt_of(12), params, 30) == first
    held.close()
    assert alone(LocalVerifier(served), prompt_of(12), SamplingParams(1.0, seed=9), 30) != first


def test_bfloat16_texts_agree_up_to_near_ties_and_stay_in_the_vocabulary() -> None:
    low = decoder(1).to(torch.bfloat16)
    served = engine(low)
    made = speculated(
        LocalVerifier(served),
        drafter(DRAFTS["close"], BestFirst(8, 3)),
        prompt_of(30),
        SamplingParams(1.0, seed=4),
        40,
    )
    assert len(made) == 40
    assert max(made) < VOCABULARY


def test_the_loop_is_a_generator_that_stops_when_it_is_left() -> None:
    served = engine(decoder(1))
    steps = decode(
        prompt_of(5),
        SamplingParams(),
        drafter(DRAFTS["close"], Chain(3)),
        LocalVerifier(served),
        100,
    )
    taken = list(islice(steps, 2))
    assert all(isinstance(step, Step) for step in taken)
