"""Forced tokens: where a grammar leaves no choice, a draft names what follows without a call."""

from __future__ import annotations

from itertools import count

import pytest

from inference.drafters.growing_proposer import Draft, GrowingProposer
from inference.planner.prices import Prices
from inference.proposer import COPY
from inference.sampling import Grammar, GrammarKind, SamplingParams
from tests.support.exact import GREEDY
from tests.support.scripted import (
    CALL,
    CHARACTERS,
    PROMPT,
    RULED,
    Numbers,
    ScriptedModel,
    World,
    disagreeing,
    knowledge,
    perfect,
    progress,
    scripted_grammars,
    sent,
    tokens_of,
)

GRAMMARS = scripted_grammars()


def ids(text: str) -> list[int]:
    return [CHARACTERS.index(one) for one in text]


def regex(pattern: str) -> SamplingParams:
    return SamplingParams(grammar=Grammar(GrammarKind.REGEX, pattern))


def proposer_of(model: ScriptedModel | None, *, knows: bool = True) -> GrowingProposer:
    draft, ticks = Draft(model, grammars=GRAMMARS if knows else None), count()
    return draft.proposer(0, knowledge(), Prices(), room=200, clock=lambda: next(ticks) * CALL)


def test_a_chain_is_sent_to_its_end_without_a_model() -> None:
    proposer, numbers = proposer_of(None), Numbers()
    proposer.open(PROMPT, regex("(abc|abd)efgh(a|b)c"))
    [nodes] = sent(proposer, numbers)
    assert (nodes.proposer, tokens_of([nodes])) == (COPY, ids("ab"))
    assert nodes.chances == [1, 1]
    proposer.on_progress(progress(len(PROMPT), ids("abd")), 0.0)
    assert tokens_of(sent(proposer, numbers)) == ids("efgh")
    proposer.on_progress(progress(len(PROMPT) + 3, ids("ef")), 0.0)
    assert sent(proposer, numbers) == []
    proposer.on_progress(progress(len(PROMPT) + 5, ids("ghb")), 0.0)
    assert tokens_of(sent(proposer, numbers))[:1] == ids("c")


def test_a_text_without_a_choice_costs_no_call() -> None:
    model = ScriptedModel(disagreeing)
    proposer, fixed = proposer_of(model), "abcdefgh" * 8
    world = World(proposer, 50, params=regex(fixed), grammars=GRAMMARS).live()
    assert world.made == ids(fixed)[:50]
    assert proposer.usage.calls == 0
    assert world.forwards <= 5


def test_a_brace_costs_no_call() -> None:
    """Of 200 tokens about 25 have a choice."""
    calls = list[int]()
    for knows in (True, False):
        proposer = proposer_of(ScriptedModel(perfect), knows=knows)
        World(proposer, 200, params=RULED, grammars=GRAMMARS).live()
        calls.append(proposer.usage.calls)
    assert calls[0] < 40
    assert calls[1] > 150


@pytest.mark.parametrize("bad", ["(", "abc"], ids=["no grammar", "a text that breaks it"])
def test_a_draft_that_cannot_have_the_grammar_drafts_as_before(bad: str) -> None:
    named = list[list[int]]()
    for params in (GREEDY, regex(bad)):
        params = SamplingParams(grammar=params.grammar, made=1)
        proposer, numbers = proposer_of(ScriptedModel(disagreeing)), Numbers()
        proposer.open(PROMPT, params)
        for _ in range(4):
            proposer.work(0.0)
        named.append(tokens_of(sent(proposer, numbers)))
        proposer.on_progress(progress(len(PROMPT), [7]), 0.0)
    assert named[0] == named[1]
    assert len(named[0]) > 5


def test_copies_and_model_learn_nothing_where_a_token_is_forced() -> None:
    known = knowledge()
    draft = Draft(ScriptedModel(disagreeing), grammars=GRAMMARS)
    proposer = draft.proposer(0, known, Prices(), copies=True)
    before = known.acceptance.to_record()
    proposer.open([*PROMPT, *ids("abcdefgh")], regex("abcdefgh(a|b)"))
    for _ in range(4):
        proposer.work(0.0)
    proposer.on_progress(progress(len(PROMPT) + 8, ids("abcdefgh")), 0.0)
    assert known.acceptance.to_record() == before
