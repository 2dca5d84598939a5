"""Whole trees for a target that waits: one under each committed root, whatever was committed."""

from __future__ import annotations

import pytest

from inference.candidates import CandidateTree
from inference.drafters.round_proposer import BestFirst, Chain, Policy, RoundProposer
from inference.proposer import Notice
from tests.support.scripted_models import ScriptedModel, disagreeing, own_text
from tests.support.stepped import PROMPT, SAMPLING, SteppedTarget

POLICIES = [Chain(4), BestFirst(8, 4)]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
@pytest.mark.parametrize("most", [1, 3, 64])
def test_rounds_give_the_targets_own_text(policy: Policy, most: int) -> None:
    """most: nodes of a forward; where not all fit, a walk ends within the tree."""
    target = SteppedTarget(PROMPT, len(PROMPT) + 60, 10**6)
    target.join(0)
    proposer = RoundProposer(ScriptedModel(disagreeing, capacity=300), policy, room=8)
    proposer.open(PROMPT, SAMPLING, target.end)
    numbers = iter(range(10**6))
    while target.may > 0:
        assert proposer.work(0.0) is not None
        assert proposer.work(0.0) is None  # complete
        nodes = proposer.flush(0.0, lambda: next(numbers))
        if nodes is not None:
            assert len(nodes.proposals) <= 8
            assert target.tree.live == 0
            target.append(0, nodes)
        assert proposer.flush(0.0, lambda: next(numbers)) is None
        told = target.forward(most)
        assert told is not None
        target.tree = CandidateTree(target.tokens)  # what is left of a tree is not waited for
        target.tree.join(0)
        notice = Notice(0.0, 0.03, 0, 0, 8)
        proposer.hear(told.position, told.tokens, 0.0, notice)
    assert target.tokens == [*PROMPT, *own_text(PROMPT, 60)]
    assert most == 1 or target.forwards < 45


def test_a_round_is_sent_again_and_several_forwards_may_be_heard_at_once() -> None:
    proposer = RoundProposer(ScriptedModel(disagreeing, capacity=300), Chain(4), room=8)
    proposer.open(PROMPT, SAMPLING)
    text, numbers = own_text(PROMPT, 20), iter(range(100))
    proposer.work(0.0)
    first = proposer.flush(0.0, lambda: next(numbers))
    proposer.hear(0, (), 0.0, None)
    again = proposer.flush(0.0, lambda: next(numbers))
    assert first is not None
    assert again is not None
    assert [one.token for one in first.proposals] == [one.token for one in again.proposals]
    assert again.proposals[0].number == 4
    proposer.hear(len(PROMPT), text[:10], 0.0, Notice(0.0, 0.03, 0, 0, 2))
    assert proposer.work(0.0) is not None  # the scripted model checks that no key is missing
    after = proposer.flush(0.0, lambda: next(numbers))
    assert after is not None
    assert after.base == len(PROMPT) + 9
    assert len(after.proposals) == 2
    assert after.proposals[0].token == disagreeing((*PROMPT, *text[:10]))[0][0]
