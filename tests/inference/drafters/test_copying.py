"""What costs no call: copies of earlier text, and tokens that a grammar forces."""

from __future__ import annotations

from collections import Counter
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.drafters.copied_text import COUNTED, Match, SuffixAutomaton
from inference.drafters.growing_proposer import Draft, GrowingProposer
from inference.drafters.round_proposer import Chain, RoundProposer
from inference.loop.draft_tuning import TUNING
from inference.planner.child_features import Following, joint_features
from inference.planner.prices import Prices
from inference.proposer import COPY, MODEL
from inference.sampling import Grammar, GrammarKind, SamplingParams
from tests.support.exact import GREEDY
from tests.support.scripted import (
    BASE,
    CALL,
    CHARACTERS,
    PROMPT,
    RULED,
    Numbers,
    ScriptedModel,
    World,
    candidates_of,
    disagreeing,
    knowledge,
    perfect,
    progress,
    scripted_grammars,
    sent,
    tokens_of,
)

PHRASE = [11, 12, 13, 14, 15, 16]
NUMBERS = Numbers()


def copier() -> GrowingProposer:
    return GrowingProposer(knowledge(), Prices(), copies=True)


def test_a_phrase_that_begins_again_is_sent_to_its_end_without_a_call() -> None:
    proposer = copier()
    proposer.open([*PHRASE, 7, *PHRASE[:3]], GREEDY, end=100)
    (nodes,) = sent(proposer, NUMBERS)
    assert (nodes.proposer, tokens_of([nodes])[:4]) == (COPY, [*PHRASE[3:], 7])
    assert proposer.work(0.0) is None
    assert proposer.usage.calls == 0
    proposer.close()
    proposer.open([8, *PHRASE[:3]], GREEDY, end=100)  # texts of others are not copied
    assert sent(proposer, NUMBERS) == []


def test_a_target_that_never_copies_silences_the_copies() -> None:
    proposer, length, copies = copier(), 6, list[int]()
    proposer.open([1, 2, 3, 1, 2, 4], GREEDY, end=4000)
    for step in range(200):
        copies.append(0)
        for token in (1, 2, 100 + step):
            copies[-1] += len(tokens_of(sent(proposer, NUMBERS)))
            proposer.on_progress(progress(length, [token]), 0.0)
            length += 1
    assert sum(copies[:20]) > 30
    assert sum(copies[-20:]) < 0.5 * sum(copies[:20])


def test_model_and_copies_share_a_list_and_name_a_token_once() -> None:
    model = ScriptedModel(disagreeing, capacity=512)
    proposer = Draft(model).proposer(0, knowledge(), Prices(), room=99, copies=True)
    prompt = [*PHRASE, 7, *PHRASE[:3]]
    proposer.open(prompt, GREEDY, end=200)
    assert [nodes.proposer for nodes in sent(proposer, NUMBERS)] == [COPY]
    for _ in range(6):
        proposer.work(0.0)
    drafted = sent(proposer, NUMBERS)
    assert {MODEL} <= {nodes.proposer for nodes in drafted} <= {COPY, MODEL}
    below = [one for nodes in drafted for one in candidates_of(nodes) if one.parent == BASE]
    assert PHRASE[3] not in [one.token for one in below]


def test_where_the_model_agrees_both_together_are_surer_and_a_context_is_judged() -> None:
    known = knowledge().acceptance
    tokens, table = joint_features({1: 0.6, 2: 0.2}, {})
    alone = dict(zip(tokens, known.together(table), strict=True))
    tokens, table = joint_features({1: 0.6, 2: 0.2}, {1: 0.9})
    both = dict(zip(tokens, known.together(table), strict=True))
    assert both[1] > alone[1]
    assert both[2] <= alone[2]
    assert sum(both.values()) < 1
    sure, unlikely = {1: 0.95, 2: 0.95}, {1: 0.1}
    assert 0.9 < known.together(joint_features(sure, sure)[1]).sum() < 1
    assert known.together(joint_features(unlikely, {})[1]).sum() < 0.5
    law, context = known.laws.copies, [[1.0, 1.1, 0.5, 0.7, 1.0]]
    (before,) = law.chances(context)
    for _ in range(100):
        law.observe(context, None)
    assert law.chances(context)[0] < 0.1 < before
    for _ in range(200):
        law.observe(context, 0)
    assert law.chances(context)[0] > 0.8


def test_few_tokens_are_named_the_most_frequent_first_and_the_latest_marked() -> None:
    text = SuffixAutomaton([1, 2, 3, 1, 2, 3, 1, 2, 4, 1, 2])
    three, four = Following(3, 2, 1, False), Following(4, 1, 0, True)
    assert text.following(text.end) == [three, four]
    text = SuffixAutomaton([*(token for last in range(10, 16) for token in (1, 2, last)), 1, 2])
    named = text.following(text.end)
    assert len(named) == TUNING.copied
    assert named[-1].rarer == 6 - TUNING.copied


TEXT = [*PHRASE, 17] * 20
REACH, ROOM = 60, 40


@pytest.mark.parametrize("written", [20, 70])
def test_a_text_that_outgrows_the_draft_is_copied_without_a_call(written: int) -> None:
    """Also one whose prompt does."""
    model = ScriptedModel(disagreeing, capacity=REACH + ROOM)
    draft = Draft(model).proposer(0, knowledge(), Prices(), room=ROOM, copies=True)
    draft.open(TEXT[:written], GREEDY, end=200)
    calls, nodes = list[int](), list[int]()
    for place, token in enumerate(TEXT[written:130], written):
        draft.work(0.0)
        sent(draft, Numbers(draft.proposed))
        calls.append(draft.usage.calls)
        nodes.append(draft.proposed)
        draft.on_progress(progress(place, [token]), 0.0)
    end = max(REACH - written, 0)
    assert (calls[end] > 0) is (written < REACH)
    assert calls[-1] == calls[end]
    assert nodes[-1] > nodes[end] + (len(nodes) - end) / 2


def test_rounds_of_a_draft_end_where_it_reaches() -> None:
    model = ScriptedModel(disagreeing, capacity=REACH)
    one = RoundProposer(model, Chain(4), room=64)
    one.open(TEXT[:70], GREEDY, end=200)
    for place, token in enumerate(TEXT[70:80], 70):
        one.work(0.0)
        one.on_progress(progress(place, [token]), 0.0)
    assert (one.usage.calls, model.calls) == (0, 0)


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=30)


def occurrences(part: list[int], whole: list[int]) -> list[int]:
    size = len(part)
    return [at for at in range(size, len(whole) + 1) if whole[at - size : at] == part]


@given(TOKENS, TOKENS)
def test_a_match_is_the_longest_with_what_followed(tokens: list[int], context: list[int]) -> None:
    automaton, match = SuffixAutomaton(tokens), Match()
    assert automaton.end.length == max(
        size
        for size in range(len(tokens))
        if len(occurrences(tokens[len(tokens) - size :], tokens)) > 1 or size == 0
    )
    for end, token in enumerate(context, 1):
        match = automaton.step(match, token)
        known = [size for size in range(end + 1) if occurrences(context[end - size : end], tokens)]
        assert match.length == max(known)
        behind = occurrences(context[end - match.length : end], tokens)
        followed = Counter(tokens[at] for at in behind if at < len(tokens))
        after = automaton.next[match.state]
        assert {one: automaton.counts[state] for one, state in after.items()} == followed
        for one, state in after.items():
            latest = max(at for at in behind if tokens[at : at + 1] == [one])
            assert automaton.latest[state] == latest


def test_a_token_that_is_repeated_costs_no_more_than_others() -> None:
    automaton = SuffixAutomaton([7] * 1000)
    assert len(automaton.next) == 1001
    assert automaton.end.length == 999
    assert sum(automaton.counts) <= 1000 * COUNTED


GRAMMARS = scripted_grammars()


def ids(text: str) -> list[int]:
    return [CHARACTERS.index(letter) for letter in text]


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


def test_copies_and_model_learn_from_a_choice_and_not_from_a_forced_token() -> None:
    known = knowledge()
    draft = Draft(ScriptedModel(disagreeing), grammars=GRAMMARS)
    proposer = draft.proposer(0, known, Prices(), copies=True)
    before = known.acceptance.to_record()
    proposer.open([*PROMPT, *ids("abcdefgh")], regex("abcdefgh(a|b)"))
    for _ in range(4):
        proposer.work(0.0)
    proposer.on_progress(progress(len(PROMPT) + 8, ids("abcdefgh")), 0.0)
    assert known.acceptance.to_record() == before
    for _ in range(4):
        proposer.work(0.0)
    proposer.on_progress(progress(len(PROMPT) + 16, ids("a")), 0.0)  # of a and b
    assert known.acceptance.to_record() != before
