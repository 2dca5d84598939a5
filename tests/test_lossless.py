"""The central fact: output equals the target's own seeded decoding, whatever is proposed, with a
rule and without one, whether or not the drafts that propose know it; and the target's own is what
transformers' processors and a plain sampler choose.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
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
from inference.sampling import Grammar, GrammarKind, SamplingParams
from inference.text.grammar import Grammars
from tests.support import pairs
from tests.support.clock import Clock
from tests.support.equality import NearTies, assert_same_text, full_logits
from tests.support.pairs import (
    VOCABULARY,
    copying,
    decoder,
    engine,
    grammars,
    growing,
    perturbed,
    prompt_of,
    rounds,
    rule_oracle,
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
SCHEMA = {
    "type": "array",
    "minItems": 2,
    "items": {
        "type": "object",
        "properties": {"a": {"enum": ["ab", "cd", "e"]}, "n": {"type": "integer"}},
        "required": ["a", "n"],
        "additionalProperties": False,
    },
}
JSON = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))
WORDS = Grammar(GrammarKind.REGEX, "([a-f]{1,5} ){3,}(end|fed)")
PENALTIES = SamplingParams(
    repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.3
).on_the_wire()
RULES = {
    "schema": SamplingParams(grammar=JSON),
    "words": SamplingParams(grammar=WORDS),
    "penalties": PENALTIES,
    "bias": SamplingParams(logit_bias=((17, 1.5), (40, -100.0), (200, 2.0))),
    "min-p": SamplingParams(min_p=0.25),
    "all": replace(PENALTIES, grammar=WORDS, min_p=0.125, logit_bias=((70, 3.0), (71, -2.5))),
}
PROPOSERS: dict[str, Callable[[Decoder, Grammars | None], Proposer]] = {
    "chain": lambda draft, rules: rounds(draft, Chain(4), rules),
    "best-first tree": lambda draft, rules: rounds(draft, BestFirst(16, 5), rules),
    "growing": lambda draft, rules: growing(draft, grammars=rules),
    "growing and copying": lambda draft, rules: growing(draft, grammars=rules, copies=True),
    "copying": lambda draft, rules: copying(grammars=rules),
}
"""Each of a draft, and of the grammars that it knows."""
NEVER_WAIT = ("chain", "growing", "growing and copying", "copying")
DRAFTS = {"close": perturbed(1, 0.02), "unrelated": decoder(99, layers=1)}

each_draft = pytest.mark.parametrize("draft", DRAFTS)
each_way = pytest.mark.parametrize(
    ("name", "pace"),
    [*((name, Pace.WAIT) for name in PROPOSERS), *((name, Pace.GO_ON) for name in NEVER_WAIT)],
)


@pytest.fixture(scope="module")
def served(target: Decoder) -> Engine:
    return engine(target, rules=grammars())


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


Check = Callable[[Callable[[], Proposer], SamplingParams, Pace, int, int], None]


@pytest.fixture(scope="module")
def check(target: Decoder, served: Engine, ties: NearTies) -> Check:
    """Whether the text behind so long a prompt, with a new proposer, equals the target's own."""
    references: dict[tuple[SamplingParams, int], list[int]] = {}

    def check(
        make: Callable[[], Proposer], params: SamplingParams, pace: Pace, length: int, tokens: int
    ) -> None:
        prompt = prompt_of(length)
        if (params, length) not in references:
            references[params, length] = alone(served, prompt, params, tokens)

        def produce(text: Sequence[int], n: int) -> list[int]:
            own = replace(params, made=len(text) - length)
            return speculated(served, make(), text, own, n, pace)

        adjust = rule_oracle(length, params).adjusted
        own = references[params, length]
        assert_same_text(target, prompt, params, own, produce, ties, adjust)

    return check


@pytest.mark.covering(2)
@pytest.mark.parametrize("params", SAMPLINGS, ids=str)
@each_way
@each_draft
def test_output_equals_the_targets_own_seeded_decoding(
    check: Check, params: SamplingParams, name: str, pace: Pace, draft: str
) -> None:
    for length, tokens in ((1, 24), (300, 16)):
        check(lambda: PROPOSERS[name](DRAFTS[draft], None), params, pace, length, tokens)


@pytest.mark.covering(2)
@pytest.mark.parametrize("params", SAMPLINGS[:3], ids=["T0", "T0.7", "T1"])
@pytest.mark.parametrize("rule", RULES)
@each_way
@each_draft
@pytest.mark.parametrize("knows", [False, True], ids=["", "knows the rule"])
def test_no_proposer_changes_a_text_with_a_rule(
    check: Check,
    params: SamplingParams,
    rule: str,
    name: str,
    pace: Pace,
    draft: str,
    knows: bool,
) -> None:
    known, ruled = grammars() if knows else None, under(RULES[rule], params)
    check(lambda: PROPOSERS[name](DRAFTS[draft], known), ruled, pace, 20, 24)


def under(rule: SamplingParams, params: SamplingParams) -> SamplingParams:
    """The rule at this temperature and seed."""
    return replace(rule, temperature=params.temperature, seed=params.seed).on_the_wire()


OWN = [*SAMPLINGS, *map(under, RULES.values(), SAMPLINGS[:3] * 2)]


@pytest.mark.parametrize("params", OWN, ids=str)
def test_the_targets_own_decoding_is_what_a_plain_sampler_chooses(
    target: Decoder, served: Engine, params: SamplingParams
) -> None:
    """A second method: full passes without cache, transformers' own processors, big-integer
    Threefry and decimal logarithms.
    """
    prompt = prompt_of(20)
    oracle, tokens = rule_oracle(len(prompt), params), list(prompt)
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
