"""Copied text beside a model and without one: what is named, sent, learnt and said."""

from __future__ import annotations

from itertools import count

from inference.drafters.copied_text import CopySource
from inference.drafters.draft import Draft
from inference.drafters.growing_proposer import GrowingProposer
from inference.planner.child_features import joint_features
from inference.planner.prices import Prices
from inference.proposer import COPY, MODEL
from tests.support.scripted_models import ScriptedModel, disagreeing
from tests.support.stepped import QUIET, SAMPLING, knowledge, sent, tokens_of

PHRASE = [11, 12, 13, 14, 15, 16]
NUMBERS = count()


def copier() -> GrowingProposer:
    return GrowingProposer(knowledge(), Prices(), CopySource())


def test_a_phrase_that_begins_again_is_sent_to_its_end_without_a_call() -> None:
    proposer = copier()
    proposer.open([*PHRASE, 7, *PHRASE[:3]], SAMPLING, end=100)
    (nodes,) = sent(proposer, NUMBERS)
    assert (nodes.proposer, tokens_of([nodes])[:4]) == (COPY, [*PHRASE[3:], 7])
    assert proposer.work(0.0) is None
    assert proposer.usage.calls == 0


def test_nothing_is_sent_where_nothing_was_said_before() -> None:
    proposer = copier()
    proposer.open(list(range(50)), SAMPLING, end=100)
    assert sent(proposer, NUMBERS) == []


def test_a_target_that_never_copies_silences_the_copies() -> None:
    proposer, length, copies = copier(), 6, list[int]()
    proposer.open([1, 2, 3, 1, 2, 4], SAMPLING, end=4000)
    for step in range(200):
        copies.append(0)
        for token in (1, 2, 100 + step):
            copies[-1] += len(tokens_of(sent(proposer, NUMBERS)))
            proposer.hear(length, [token], 0.0, QUIET)
            length += 1
    assert sum(copies[:20]) > 30
    assert sum(copies[-20:]) < 0.5 * sum(copies[:20])


def test_model_and_copies_share_a_list_and_name_a_token_once() -> None:
    model = ScriptedModel(disagreeing, capacity=512)
    proposer = Draft(model).proposer(0, knowledge(), Prices(), room=99, source=CopySource())
    prompt = [*PHRASE, 7, *PHRASE[:3]]
    proposer.open(prompt, SAMPLING, end=200)
    assert [nodes.proposer for nodes in sent(proposer, NUMBERS)] == [COPY]
    for _ in range(6):
        proposer.work(0.0)
    drafted = sent(proposer, NUMBERS)
    assert {MODEL} <= {nodes.proposer for nodes in drafted} <= {COPY, MODEL}
    assert PHRASE[3] not in tokens_of(drafted)


def test_where_the_model_agrees_both_together_are_surer_than_the_model() -> None:
    known = knowledge().acceptance
    tokens, table = joint_features({1: 0.6, 2: 0.2}, {})
    alone = dict(zip(tokens, known.together(table), strict=True))
    tokens, table = joint_features({1: 0.6, 2: 0.2}, {1: 0.9})
    both = dict(zip(tokens, known.together(table), strict=True))
    assert both[1] > alone[1]
    assert both[2] <= alone[2]
    assert sum(both.values()) < 1


def test_what_a_context_is_worth_is_learnt() -> None:
    learned = knowledge().acceptance
    table = [[1.0, 1.1, 0.5, 0.7, 1.0]]
    (before,) = learned.copied(table)
    for _ in range(100):
        learned.observe_copied(table, None)
    (after,) = learned.copied(table)
    assert after < 0.1 < before
    for _ in range(200):
        learned.observe_copied(table, 0)
    assert learned.copied(table)[0] > 0.8
