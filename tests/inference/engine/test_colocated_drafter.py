"""A draft beside the target: one call serves all who asked, and nobody else is held up."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import pytest

from inference.backends import Ranked, Segment
from inference.drafters import growing_proposer as drafts
from inference.engine.colocated.drafter import ColocatedDrafter
from inference.engine.sessions.session import Session
from inference.engine.tuning import TUNING
from inference.order import Decode
from inference.proposer import COLOCATED, COPY, NOBODY
from inference.sampling import SamplingParams
from inference.text.grammar import Grammars
from tests.support.beside import CALL, FORWARD
from tests.support.clock import Clock
from tests.support.exact import GREEDY, asked, exact_engine, finish, free, own_text, together
from tests.support.exact import text_of as made_by
from tests.support.pairs import knowledge
from tests.support.scripted import (
    RULED,
    Prefix,
    Says,
    ScriptedModel,
    disagreeing,
    scripted_grammars,
    useless,
)
from tests.support.scripted import VOCABULARY as KINDS
from tests.support.scripted import perfect as right


def wrong(prefix: Prefix) -> tuple[list[int], list[float]]:
    """Anything but what the target says, and is as sure of it as one that is right."""
    return useless(prefix)[0], right(prefix)[1]


class Draft(ScriptedModel):
    """Takes its time. together: texts of each call that ranks. fed: nodes of the other calls"""

    def __init__(self, says: Says, clock: Clock, rows: int, call: float) -> None:
        super().__init__(says, rows=rows, capacity=2000)
        self.together, self.fed = list[int](), list[int]()
        self.broken = False
        self._clock, self._call = clock, call

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        self._clock.now += self._call
        if self.broken:
            raise RuntimeError("a private reason")
        if k == 1:
            self.fed.append(len(segments[0].tokens))
        else:
            self.together.append(len(segments))
        return super().rank(segments, k)


class Hosted:
    """An engine with a draft beside it, on a clock of the test."""

    def __init__(
        self,
        says: Says = right,
        *,
        rows: int = 4,
        draft_rows: int | None = None,
        call: float = CALL,
        copies: bool = False,
        kinds: int = KINDS,
        grammars: Grammars | None = None,
    ) -> None:
        self.clock = Clock()
        self.draft = Draft(says, self.clock, draft_rows or rows, call)
        known = partial(knowledge, call, 32)
        self.host = ColocatedDrafter(
            drafts.Draft(self.draft, grammars=grammars),
            known,
            room=200,
            clock=self.clock,
            copies=copies,
        )
        self.engine, self.model, _ = exact_engine(
            rows, kinds=kinds, times=free, clock=self.clock, drafter=self.host, grammars=grammars
        )

    def asked(
        self,
        prompt: Sequence[int],
        tokens: int,
        params: SamplingParams = GREEDY,
        *,
        beside: bool = True,
    ) -> Session:
        return asked(self.engine, prompt, tokens, params, beside=beside)


def test_what_the_text_said_before_is_copied_for_who_asked() -> None:
    """The target chooses among three tokens: every context of two soon comes again."""
    hosted = Hosted(wrong, copies=True, kinds=3)
    session, other = hosted.asked([1, 2, 3], 300), hosted.asked([1, 2, 4], 300, beside=False)
    finish(hosted.engine, session, other)
    assert made_by(session) == own_text([1, 2, 3], 300, kinds=3)
    assert session.proposers.count(COPY) > 30
    assert set(other.proposers) == {NOBODY}


def test_a_text_with_a_grammar_is_drafted_by_it_once_its_rule_is_made() -> None:
    """It is made beside the forwards, which go on meanwhile."""
    texts = list[list[int]]()
    for drafted in (False, True):
        hosted = Hosted(disagreeing, kinds=KINDS, grammars=scripted_grammars())
        session = hosted.asked([1, 2, 3], 300, RULED, beside=drafted)
        while drafted and hosted.host.free_rows == 4:
            hosted.engine.step()
            hosted.engine.acknowledge(session, session.length)
            time.sleep(0.01)
        before, forwards = session.length - 3, session.spent.forwards
        finish(hosted.engine, session)
        texts.append(made_by(session))
    assert texts[0] == texts[1]
    assert session.proposers[before:].count(COPY) > 100
    assert session.spent.forwards - forwards < 100


def test_one_call_serves_all_who_asked() -> None:
    hosted = Hosted(right)
    prompts = [[1, 2, number] for number in range(4)]
    sessions = together(hosted.engine, prompts, 100, beside=True)
    finish(hosted.engine, *sessions)
    for number, session in enumerate(sessions):
        assert made_by(session) == own_text([1, 2, number], 100, kinds=KINDS)
        assert session.spent.forwards < 20
    assert set(hosted.draft.together) == {4}


def test_a_draft_that_is_never_right_falls_silent_and_is_asked_now_and_then() -> None:
    hosted = Hosted(wrong)
    session = hosted.asked([1, 2, 3], 1000)
    while session.length < 400:
        hosted.engine.step()
        hosted.engine.acknowledge(session, session.length)
    began, before = hosted.clock.now, len(hosted.draft.together)
    finish(hosted.engine, session)
    assert 603 // 64 - 1 <= len(hosted.draft.together) - before <= 603 // 64 + 1
    assert hosted.clock.now - began < 1.02 * 603 * FORWARD


@pytest.mark.covering(2)
@pytest.mark.parametrize("call", [0.0005, 0.0015, 0.008, 0.020])
@pytest.mark.parametrize("tokens", [32, 128])
@pytest.mark.parametrize("says", [right, wrong])
def test_a_draft_takes_a_fiftieth_of_a_text_at_most_unless_it_helps(
    says: Says, tokens: int, call: float
) -> None:
    """Whatever a call takes, in units of a forward of 10 ms."""
    hosted = Hosted(says, call=call)
    for number in range(3):
        session = hosted.asked([1, 2, number], tokens)
        hosted.engine.step()  # feeds the prompt
        began, made = hosted.clock.now, session.length
        finish(hosted.engine, session)
        needed = hosted.clock.now - began
        assert needed <= (3 + tokens - made + 0.1) * FORWARD / 0.98
        if says is right and call < FORWARD / 4 and tokens == 128:
            assert needed < tokens * FORWARD / 2
        hosted.engine.close(session)


def test_a_key_whose_drafts_bring_nothing_pays_for_its_first_call_beforehand() -> None:
    hosted = Hosted(wrong, call=0.002)
    finish(hosted.engine, hosted.asked([1, 2, 3], 128))
    first = len(hosted.draft.together)
    session = hosted.asked([1, 2, 4], 128)
    for _ in range(9):
        hosted.engine.step()  # a call takes a fifth of a token, and a forward earns a fiftieth
    assert len(hosted.draft.together) == first
    finish(hosted.engine, session)
    assert len(hosted.draft.together) > first


@pytest.mark.covering(1)
@pytest.mark.parametrize("says", [right, wrong])
@pytest.mark.parametrize("prompt", [3, 400])
def test_who_did_not_ask_keeps_its_root_only_rate(says: Says, prompt: int) -> None:
    """0.98 of it, but for the few tokens that it may be behind at any moment."""
    hosted = Hosted(says, call=0.004)
    guests = [hosted.asked([number] * prompt, 600) for number in range(1, 3)]
    other = hosted.asked([9, 9, 9], 400, beside=False)
    began, forwards = hosted.clock.now, other.spent.forwards
    finish(hosted.engine, other)
    assert other.spent.forwards - forwards == 400
    assert hosted.clock.now - began <= (400 + TUNING.max_ahead) * FORWARD / 0.98
    assert hosted.draft.calls > 0, "what it is ahead is used"
    finish(hosted.engine, *guests)
    for number, guest in enumerate(guests, 1):
        assert made_by(guest) == own_text([number] * prompt, 600, kinds=KINDS)


def test_a_long_text_is_fed_to_the_draft_in_parts_between_forwards() -> None:
    hosted = Hosted(right)
    neighbour = hosted.asked([1, 2, 3], 300)
    hosted.engine.step()
    hosted.draft.fed.clear()
    session = hosted.asked([7] * 500, 20)
    forwards = len(hosted.model.calls)
    while len(hosted.draft.fed) < 8:
        before = len(hosted.draft.fed)
        hosted.engine.step()
        assert len(hosted.draft.fed) <= before + 1
    assert sum(hosted.draft.fed) == 499
    assert len(hosted.model.calls) >= forwards + 8
    finish(hosted.engine, session, neighbour)
    assert made_by(session) == own_text([7] * 500, 20, kinds=KINDS)


def test_a_session_that_closes_or_wants_no_draft_any_more_gives_its_row_back() -> None:
    hosted = Hosted(rows=2, draft_rows=1)
    first, second = (hosted.asked([1, number], 300) for number in range(2))
    for _ in range(5):
        hosted.engine.step()
    assert COLOCATED not in second.proposers
    hosted.engine.decode(first, Decode(302, credit=512))
    finish(hosted.engine, first, second)
    assert COLOCATED in second.proposers
    for number, session in enumerate((first, second)):
        assert made_by(session) == own_text([1, number], 300, kinds=KINDS)
    assert hosted.host.free_rows == 0
    hosted.engine.close(second)
    hosted.engine.step()
    assert hosted.host.free_rows == 1


@pytest.mark.parametrize("steps", [0, 3])
def test_when_the_draft_fails_texts_go_on_without_it(
    steps: int, caplog: pytest.LogCaptureFixture
) -> None:
    hosted = Hosted(right)
    sessions = [hosted.asked([1, 2, number], 400) for number in range(2)]
    for _ in range(steps):
        hosted.engine.step()
    hosted.draft.broken = True
    finish(hosted.engine, *sessions)
    for number, session in enumerate(sessions):
        assert made_by(session) == own_text([1, 2, number], 400, kinds=KINDS)
    assert hosted.host.free_rows == 4
    assert "RuntimeError" in caplog.text
