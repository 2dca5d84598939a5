"""A draft whose context is shorter than the text: it drafts as far as it reaches; copies go on."""

from __future__ import annotations

from inference.drafters.copied_text import CopySource
from inference.drafters.draft import Draft
from inference.drafters.growing_proposer import GrowingProposer
from inference.drafters.round_proposer import Chain, RoundProposer
from inference.planner.prices import Prices
from inference.proposer import Notice
from tests.support.scripted_models import ScriptedModel, disagreeing
from tests.support.stepped import SAMPLING, knowledge

QUIET = Notice(0.0, 0.03, 0, 0, 64)
PHRASE = [11, 12, 13, 14, 15, 16, 17]
TEXT = PHRASE * 20
REACH, ROOM = 60, 40


def proposer() -> GrowingProposer:
    model = ScriptedModel(disagreeing, capacity=REACH + ROOM)
    return Draft(model).proposer(0, knowledge(), Prices(), room=ROOM, source=CopySource())


def calls_and_sent(one: GrowingProposer, written: int, tokens: list[int]) -> list[tuple[int, int]]:
    """After each committed token: calls of the model so far, and nodes sent so far."""
    history = []
    for place, token in enumerate(tokens, written):
        one.work(0.0)
        numbers = iter(range(one.proposed, 10**6))
        while one.flush(0.0, lambda left=numbers: next(left)) is not None:  # type: ignore[misc]
            pass
        history.append((one.usage.calls, one.proposed))
        one.hear(place, [token], 0.0, QUIET)
    return history


def test_a_text_that_outgrows_the_draft_is_copied_without_a_call() -> None:
    one = proposer()
    one.open(TEXT[:20], SAMPLING, end=200)
    within, beyond = 40, 70
    history = calls_and_sent(one, 20, TEXT[20 : 20 + within + beyond])
    at_the_end, (calls, sent) = history[within], history[-1]
    assert at_the_end[0] > 0
    assert calls == at_the_end[0]
    assert sent > at_the_end[1] + beyond / 2


def test_a_prompt_that_is_longer_than_the_draft_reaches_is_copied_from() -> None:
    one = proposer()
    one.open(TEXT[:70], SAMPLING, end=200)
    history = calls_and_sent(one, 70, TEXT[70:100])
    assert history[-1][0] == 0
    assert history[-1][1] > 15


def test_rounds_of_a_draft_end_where_it_reaches() -> None:
    model = ScriptedModel(disagreeing, capacity=REACH)
    one = RoundProposer(model, Chain(4), room=64)
    one.open(TEXT[:70], SAMPLING, end=200)
    for place, token in enumerate(TEXT[70:80], 70):
        one.work(0.0)
        one.hear(place, [token], 0.0, QUIET)
    assert (one.usage.calls, model.calls) == (0, 0)
