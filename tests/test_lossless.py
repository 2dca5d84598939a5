"""The central fact: output equals the target's own seeded decoding, whatever is proposed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import islice
from typing import Any

import pytest
import torch

from inference.drafters.round_proposer import BestFirst, Chain
from inference.engine.engine import Engine
from inference.engine.sessions.local_session import LocalSession
from inference.loop.decode import Step, decode
from inference.model.decoder import Decoder
from inference.order import Decode, End, Pace
from inference.proposer import MODEL, NOBODY, Proposer
from inference.sampling import SamplingParams
from tests.support import pairs
from tests.support.clock import Clock
from tests.support.equality import NearTies, assert_same_text, full_logits
from tests.support.oracles import RuleOracle
from tests.support.pairs import (
    VOCABULARY,
    copying,
    decoder,
    engine,
    growing,
    growing_and_copying,
    perturbed,
    prompt_of,
    rounds,
)

SAMPLINGS = [
    SamplingParams(),
    SamplingParams(0.7, seed=11),
    SamplingParams(1.0, seed=2**62 + 12345),
    SamplingParams(0.7, top_p=0.9, seed=13),
    SamplingParams(1.0, top_p=0.9, seed=14),
    SamplingParams(1.0, top_k=20, seed=15),
    SamplingParams(1.0, top_k=20, top_p=0.8, seed=16),
]
PROPOSERS: dict[str, Callable[[Decoder], Proposer]] = {
    "chain": lambda draft: rounds(draft, Chain(4)),
    "best-first tree": lambda draft: rounds(draft, BestFirst(16, 5)),
    "growing": growing,
    "growing and copying": growing_and_copying,
    "copying": lambda draft: copying(),
}
NEVER_WAIT = ("chain", "growing", "growing and copying", "copying")
DRAFTS = {"close": perturbed(1, 0.02), "unrelated": decoder(99, layers=1)}


@pytest.fixture(scope="module")
def references() -> dict[tuple[SamplingParams, int], list[int]]:
    """Texts that several tests compare with, once they were made."""
    return {}


def steps_of(
    served: Engine,
    prompt: Sequence[int],
    params: SamplingParams,
    tokens: int,
    proposers: Sequence[Proposer] = (),
    clock: Callable[[], float] = time.perf_counter,
    **changes: Any,
) -> list[Step]:
    """What brought so many tokens."""
    order = Decode(len(prompt) + tokens, **changes)
    with closing(LocalSession(served)) as session:
        steps = list(decode(prompt, params, session, order, proposers, clock=clock))
    return [step for step in steps if step.tokens]


def alone(served: Engine, prompt: Sequence[int], params: SamplingParams, tokens: int) -> list[int]:
    """The target's own text."""
    return pairs.alone(LocalSession(served), prompt, params, tokens)


def speculated(
    served: Engine,
    proposer: Proposer,
    prompt: Sequence[int],
    params: SamplingParams,
    tokens: int,
    pace: Pace,
) -> list[int]:
    """The text with a proposer, at either pace whatever its kind."""
    steps = steps_of(served, prompt, params, tokens, [proposer], pace=pace)
    return [token for step in steps for token in step.tokens]


@pytest.mark.covering(2)
@pytest.mark.parametrize(
    "params", SAMPLINGS, ids=lambda params: f"T{params.temperature}-p{params.top_p}-k{params.top_k}"
)
@pytest.mark.parametrize(
    ("name", "pace"),
    [*((name, Pace.WAIT) for name in PROPOSERS), *((name, Pace.GO_ON) for name in NEVER_WAIT)],
)
@pytest.mark.parametrize("draft", DRAFTS)
def test_output_equals_the_targets_own_seeded_decoding(
    target: Decoder,
    served: Engine,
    references: dict[tuple[SamplingParams, int], list[int]],
    ties: NearTies,
    params: SamplingParams,
    name: str,
    pace: Pace,
    draft: str,
) -> None:
    for length, tokens in ((1, 24), (300, 16)):
        prompt = prompt_of(length)
        if (params, length) not in references:
            references[params, length] = alone(served, prompt, params, tokens)
        reference = references[params, length]

        def produce(prompt: Sequence[int], n: int) -> list[int]:
            proposer = PROPOSERS[name](DRAFTS[draft])
            return speculated(served, proposer, prompt, params, n, pace)

        assert_same_text(target, prompt, params, reference, produce, ties)


@pytest.mark.parametrize(
    "params", SAMPLINGS, ids=lambda params: f"T{params.temperature}-p{params.top_p}-k{params.top_k}"
)
def test_the_targets_own_decoding_is_what_a_plain_float64_sampler_chooses(
    target: Decoder, served: Engine, params: SamplingParams
) -> None:
    """A second method: full passes without cache, transformers' own warpers, big-integer Threefry
    and decimal logarithms.
    """
    prompt = prompt_of(20)
    oracle, tokens = RuleOracle(None, len(prompt), params), list(prompt)
    for ours in alone(served, prompt, params, 30):
        assert ours == oracle.choice(tokens, full_logits(target, tokens)[-1])
        tokens.append(ours)


def test_a_draft_with_the_targets_weights_is_always_accepted(
    target: Decoder, served: Engine
) -> None:
    for params in (
        SamplingParams(),
        SamplingParams(1.0, seed=3),
        SamplingParams(1.0, top_p=0.9, seed=3),
    ):
        steps = steps_of(
            served, prompt_of(9), params, 40, [rounds(target, Chain(4))], pace=Pace.WAIT
        )
        assert [len(step.tokens) for step in steps] == [5] * 8
        assert [step.proposers for step in steps] == [(0, 0, 0, 0, NOBODY)] * 8
    assert served.free_rows == served.model.rows


@pytest.mark.parametrize("pace", Pace, ids=lambda pace: pace.name)
def test_a_growing_draft_with_the_targets_weights_saves_most_forwards(
    target: Decoder, pace: Pace
) -> None:
    """By a clock that stands still: what is worth drafting depends on times."""
    clock, params = Clock(), SamplingParams(1.0, seed=3)
    served, proposer = engine(target, clock=clock), growing(target, clock=clock)
    steps = steps_of(served, prompt_of(9), params, 60, [proposer], clock, pace=pace)
    assert len(steps) < 10
    assert {kind for step in steps for kind in step.proposers[:-1]} == {MODEL}


def test_two_proposers_beside_each_other_change_nothing(served: Engine) -> None:
    params = SamplingParams(1.0, seed=3)
    several: list[Proposer] = [
        growing(DRAFTS["close"]),
        rounds(DRAFTS["unrelated"], BestFirst(8, 3)),
    ]
    steps = steps_of(served, prompt_of(9), params, 24, several)
    made = [token for step in steps for token in step.tokens]
    assert made == alone(served, prompt_of(9), params, 24)


def test_shared_noise_keeps_a_close_draft_accepted_at_temperature_one() -> None:
    """With fresh noise two samplers of this flat target would agree on a few per cent of tokens."""
    params, proposer = SamplingParams(1.0, seed=3), rounds(DRAFTS["close"], Chain(1))
    steps = steps_of(engine(decoder(1)), prompt_of(9), params, 60, [proposer], pace=Pace.WAIT)
    accepted = sum(len(step.tokens) - 1 for step in steps)
    assert accepted / len(steps) > 0.5


@pytest.mark.parametrize("tokens", [1, 2, 3, 7])
@pytest.mark.parametrize("pace", Pace, ids=lambda pace: pace.name)
def test_exactly_the_tokens_asked_for_are_made(tokens: int, pace: Pace) -> None:
    served, proposer = engine(decoder(1)), rounds(DRAFTS["close"], BestFirst(16, 5))
    reference = alone(served, prompt_of(5), SamplingParams(), tokens)
    made = speculated(served, proposer, prompt_of(5), SamplingParams(), tokens, pace)
    assert made == reference
    assert len(reference) == tokens


def test_a_text_ends_behind_its_first_stop_id_however_much_was_accepted(target: Decoder) -> None:
    served, params = engine(target), SamplingParams(1.0, seed=3)
    text = alone(served, prompt_of(9), params, 20)
    for at in (0, 2, 13):
        stop, first = frozenset({text[at]}), text.index(text[at])
        for pace, proposer in (
            (Pace.WAIT, rounds(target, Chain(4))),
            (Pace.GO_ON, growing(target)),
            (Pace.GO_ON, growing(DRAFTS["unrelated"])),
        ):
            steps = steps_of(served, prompt_of(9), params, 20, [proposer], pace=pace, stop_ids=stop)
            assert [token for step in steps for token in step.tokens] == text[: first + 1]
            assert steps[-1].end is End.STOP_ID


def test_a_session_may_fill_its_sequence_length_to_the_last_token() -> None:
    served = engine(decoder(1))
    prompt = prompt_of(served.sequence_length - 6)
    reference = alone(served, prompt, SamplingParams(), 6)
    for proposer in (rounds(DRAFTS["close"], Chain(4)), growing(DRAFTS["close"])):
        for pace in Pace:
            assert speculated(served, proposer, prompt, SamplingParams(), 6, pace) == reference


def test_output_depends_on_prompt_parameters_and_target_only() -> None:
    """Not on the row, on what the row held before, or on the proposer; but on the seed it does."""
    served, params = engine(decoder(1), rows=2), SamplingParams(1.0, seed=8)
    first = alone(served, prompt_of(12), params, 30)
    held = LocalSession(served)
    held.open(prompt_of(40), params)
    assert alone(served, prompt_of(12), params, 30) == first
    held.close()
    assert alone(served, prompt_of(12), SamplingParams(1.0, seed=9), 30) != first


def test_bfloat16_texts_agree_up_to_near_ties_and_stay_in_the_vocabulary() -> None:
    served = engine(decoder(1).to(torch.bfloat16))
    proposer, params = rounds(DRAFTS["close"], BestFirst(8, 3)), SamplingParams(1.0, seed=4)
    made = speculated(served, proposer, prompt_of(30), params, 40, Pace.WAIT)
    assert len(made) == 40
    assert max(made) < VOCABULARY


def test_the_loop_is_a_generator_that_stops_when_it_is_left() -> None:
    served, order = engine(decoder(1)), Decode(105)
    with closing(LocalSession(served)) as session:
        steps = decode(
            prompt_of(5), SamplingParams(), session, order, [rounds(DRAFTS["close"], Chain(3))]
        )
        assert len(list(islice(steps, 2))) == 2
    served.step()
    assert served.free_rows == served.model.rows
