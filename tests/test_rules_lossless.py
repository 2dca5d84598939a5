"""A text with a rule equals the target's own, whether or not the drafts that propose know it; and
the target's own is what transformers' processors and a plain sampler choose.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from inference.engine.engine import Engine
from inference.engine.sessions.local_session import LocalSession
from inference.model.decoder import Decoder
from inference.order import Decode, Pace
from inference.proposer import Proposer
from inference.sampling import Grammar, GrammarKind, SamplingParams
from inference.text.grammar import Grammars
from tests.support.equality import NearTies, assert_same_text, full_logits
from tests.support.pairs import (
    alone,
    copying,
    decoder,
    engine,
    grammars,
    growing,
    growing_and_copying,
    perturbed,
    prompt_of,
    rounds,
    rule_oracle,
    text_of,
)

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
BIAS = SamplingParams(logit_bias=((17, 1.5), (40, -100.0), (200, 2.0)))
RULES = {
    "schema": SamplingParams(grammar=JSON),
    "words": SamplingParams(grammar=WORDS),
    "penalties": PENALTIES,
    "bias": BIAS,
    "min-p": SamplingParams(min_p=0.25),
    "all": replace(PENALTIES, grammar=WORDS, min_p=0.125, logit_bias=((70, 3.0), (71, -2.5))),
}
TEMPERATURES = [(0.0, 0), (0.7, 11), (1.0, 2**62 + 12345)]
PROPOSERS: dict[str, Callable[..., Proposer]] = {
    "rounds": rounds,
    "growing": growing,
    "growing and copying": growing_and_copying,
    "copying": lambda draft, grammars: copying(grammars=grammars),
}
"""Each of a draft, and of the grammars that it knows."""
DRAFTS: dict[str, tuple[Decoder, Grammars | None]] = {
    "close": (perturbed(1, 0.02), None),
    "close, knows the rule": (perturbed(1, 0.02), grammars()),
    "unrelated, knows the rule": (decoder(99, layers=1), grammars()),
}
TOKENS = 24

each_rule = pytest.mark.parametrize("rule", RULES)
each_temperature = pytest.mark.parametrize(
    ("temperature", "seed"), TEMPERATURES, ids=[f"T{at}" for at, _ in TEMPERATURES]
)


@pytest.fixture(scope="module")
def served(target: Decoder) -> Engine:
    return engine(target, rules=grammars())


@pytest.fixture(scope="module")
def references() -> dict[SamplingParams, list[int]]:
    """Texts that several tests compare with, once they were made."""
    return {}


def params_of(rule: str, temperature: float, seed: int) -> SamplingParams:
    return replace(RULES[rule], temperature=temperature, seed=seed).on_the_wire()


def text_with(
    served: Engine, proposer: Proposer, prompt: Sequence[int], params: SamplingParams, tokens: int,
    pace: Pace,
) -> list[int]:  # fmt: skip
    order = Decode(len(prompt) + tokens, pace=pace)
    return text_of(prompt, params, LocalSession(served), order, [proposer])


@pytest.mark.covering(1)
@each_temperature
@each_rule
def test_the_targets_own_text_is_what_transformers_and_a_plain_sampler_choose(
    target: Decoder, served: Engine, rule: str, temperature: float, seed: int
) -> None:
    prompt, params = prompt_of(20), params_of(rule, temperature, seed)
    oracle, tokens = rule_oracle(len(prompt), params), list(prompt)
    for ours in alone(LocalSession(served), prompt, params, TOKENS):
        assert ours == oracle.choice(tokens, full_logits(target, tokens)[-1])
        tokens.append(ours)


@pytest.mark.covering(2)
@each_temperature
@each_rule
@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize(
    ("name", "pace"),
    [(name, pace) for name in PROPOSERS for pace in Pace if (name, pace) != ("rounds", Pace.GO_ON)],
)
def test_no_proposer_changes_a_text_with_a_rule(
    target: Decoder,
    served: Engine,
    references: dict[SamplingParams, list[int]],
    ties: NearTies,
    name: str,
    pace: Pace,
    draft: str,
    rule: str,
    temperature: float,
    seed: int,
) -> None:
    prompt, params = prompt_of(20), params_of(rule, temperature, seed)
    if params not in references:
        references[params] = alone(LocalSession(served), prompt, params, TOKENS)

    def produce(text: Sequence[int], n: int) -> list[int]:
        own = replace(params, made=len(text) - len(prompt))
        decoder, known = DRAFTS[draft]
        return text_with(served, PROPOSERS[name](decoder, grammars=known), text, own, n, pace)

    adjust = rule_oracle(len(prompt), params).adjusted
    assert_same_text(target, prompt, params, references[params], produce, ties, adjust)
