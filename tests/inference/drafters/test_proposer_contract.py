"""The contract of a Proposer, with a grammar and without. A new one joins by a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import pytest

from inference.drafters.growing_proposer import Draft
from inference.drafters.round_proposer import BestFirst, Chain, Policy, RoundProposer
from inference.planner.prices import Prices
from inference.proposer import DraftUsage, Nodes, Proposer
from inference.sampling import SamplingParams
from tests.support.exact import GREEDY
from tests.support.scripted import (
    BASE,
    RULED,
    Numbers,
    ScriptedModel,
    World,
    candidates_of,
    disagreeing,
    knowledge,
    progress,
    scripted_grammars,
    sent,
    tokens_of,
)

PROMPT = [3, 1, 4, 1, 5, 9, 3, 1, 4]
TOKENS = 60
GRAMMARS = scripted_grammars()
RULES = {"free": GREEDY, "JSON": RULED}


@cache
def text(params: SamplingParams) -> list[int]:
    """What the target says alone."""
    return World(None, TOKENS, prompt=PROMPT, params=params, grammars=GRAMMARS).live().made


def _drafted(draft: Draft, *, copies: bool = False) -> Proposer:
    draft = draft._replace(grammars=GRAMMARS)
    return draft.proposer(0, knowledge(), Prices(), copies=copies, room=200)


def _rounds(policy: Policy) -> Proposer:
    model = ScriptedModel(disagreeing)
    return RoundProposer(model, policy, room=8, make_rule=GRAMMARS.rule)


PROPOSERS: dict[str, Callable[[], Proposer]] = {
    "a model": lambda: _drafted(Draft(ScriptedModel(disagreeing))),
    "a model and copies": lambda: _drafted(Draft(ScriptedModel(disagreeing)), copies=True),
    "copies": lambda: _drafted(Draft(None), copies=True),
    "chains": lambda: _rounds(Chain(4)),
    "trees": lambda: _rounds(BestFirst(8, 4)),
}


@pytest.fixture(params=PROPOSERS)
def proposer(request: pytest.FixtureRequest) -> Proposer:
    return PROPOSERS[request.param]()


@pytest.fixture(params=RULES)
def params(request: pytest.FixtureRequest) -> SamplingParams:
    return RULES[request.param]


def worked(proposer: Proposer, calls: int = 6) -> None:
    for _ in range(calls):
        proposer.work(0.0)


def positions(messages: Sequence[Nodes]) -> dict[int, int]:
    """Each node's position by its number. Fails for a parent that was not sent before."""
    found = dict[int, int]()
    for message in messages:
        for number, parent, _, chance in candidates_of(message):
            assert 0 <= chance <= 1
            assert number not in found
            found[number] = (message.base if parent == BASE else found[parent]) + 1
    return found


@pytest.mark.covering(2)
@pytest.mark.parametrize("most", [64, 3, 1])
def test_the_text_is_the_targets_own_also_that_of_a_second_text(
    proposer: Proposer, params: SamplingParams, most: int
) -> None:
    """most: nodes of a forward; where not all fit, a walk ends within the tree."""
    for _ in range(2):
        world = World(proposer, TOKENS, prompt=PROMPT, params=params, grammars=GRAMMARS)
        assert world.live(most).made == text(params)
        positions(world.sent)
        proposer.close()


def test_it_hands_over_each_node_once_behind_its_parent_and_under_the_root(
    proposer: Proposer, params: SamplingParams
) -> None:
    proposer.open(PROMPT, params)
    numbers, messages = Numbers(), list[Nodes]()
    for at in range(10):
        worked(proposer)
        fresh = sent(proposer, numbers)
        assert {one.base for one in fresh} <= {len(PROMPT) - 1 + at}
        messages += fresh
        assert sent(proposer, numbers) == []
        held = sum(len(one.tokens) for one in messages)
        proposer.on_progress(progress(len(PROMPT) + at, text(params)[at : at + 1], 0, held), 0.0)
    assert list(positions(messages)) == list(range(numbers.next))
    assert len(positions(messages)) > 3


@pytest.mark.covering(2)
@pytest.mark.parametrize("left", [2, 3, 5])
def test_it_names_nothing_at_the_last_position_of_the_text(
    proposer: Proposer, params: SamplingParams, left: int
) -> None:
    """The last token is the target's own in any case."""
    end = len(PROMPT) + left
    proposer.open(PROMPT, params, end)
    worked(proposer)
    assert all(at < end - 1 for at in positions(sent(proposer, Numbers())).values())


def test_what_is_heard_twice_or_of_several_forwards_counts_once_and_a_gap_is_told(
    proposer: Proposer, params: SamplingParams
) -> None:
    """The scripted model finds a key that is missing."""
    start = len(PROMPT)
    proposer.open(PROMPT, params)
    worked(proposer)
    before = tokens_of(sent(proposer, Numbers()))
    proposer.on_new_stream()  # all that lives is sent again
    assert sorted(tokens_of(sent(proposer, numbers := Numbers()))) == sorted(before)
    proposer.on_progress(progress(start, text(params)[:10], 0, 0), 0.0)
    worked(proposer)
    assert {nodes.base for nodes in sent(proposer, numbers)} <= {start + 9}
    proposer.on_progress(progress(start + 8, text(params)[8:12], 0, 0), 0.1)
    with pytest.raises(ValueError, match=f"position {start + 13}, not {start + 12}"):
        proposer.on_progress(progress(start + 13, text(params)[13:14], 0, 0), 0.1)


def test_work_says_what_it_took_until_nothing_is_worth_a_call(
    proposer: Proposer, params: SamplingParams
) -> None:
    proposer.open(PROMPT, params, len(PROMPT) + 2)
    total = DraftUsage()
    for _ in range(100):
        used = proposer.work(0.0)
        if used is None:
            break
        total = total.plus(used)
    else:
        pytest.fail("it never stops")
    assert total.nodes >= total.calls
    assert total.seconds >= 0


def test_it_names_only_what_the_rule_allows(proposer: Proposer) -> None:
    proposer.open(PROMPT, RULED)
    rule, made, numbers = GRAMMARS.rule(PROMPT, RULED), text(RULED), Numbers()
    assert rule is not None
    named = 0
    for at in range(0, 30, 3):
        worked(proposer)
        paths = dict[int, list[int]]()
        for nodes in sent(proposer, numbers):
            for number, parent, token, _ in candidates_of(nodes):
                if parent != BASE and parent not in paths:
                    continue  # it was sent before, below another root
                above = [] if parent == BASE else paths[parent]
                assert rule.allows(above, [token]) == [True]
                paths[number] = [*above, token]
                named += 1
        proposer.on_progress(progress(len(PROMPT) + at, made[at : at + 3], 0, 10**6), 0.0)
        rule.commit(made[at : at + 3])
    assert named > 5
