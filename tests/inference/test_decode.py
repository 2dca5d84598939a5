"""The loop between a session and its proposers: who is told what, and when; also of a draft on a
thread of its own, where nothing that it does delays a committed token.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

import pytest

from inference.engine.engine import Engine
from inference.engine.sessions.local_session import LocalSession
from inference.loop.decode import NOTHING, Loop, Step, TargetSession, decode
from inference.loop.draft_thread import Drafter, Drafting, inline, on_thread
from inference.loop.throttle import Baseline, Throttle
from inference.order import Decode, Pace, Progress
from inference.proposer import COPY, DraftUsage, Nodes, Proposer
from inference.sampling import SamplingParams
from tests.support.clock import Clock
from tests.support.exact import exact_engine, free, own_text
from tests.support.pairs import decoder, engine, growing, perturbed
from tests.support.scripted import BASE, Candidate, nodes_of
from tests.support.wire_fixtures import progress

PROMPT = [1, 2, 3]
TEXT = own_text(PROMPT, 40)
SECONDS = 60
"""Longest wait for another thread: a test that waits so long has failed."""


class Foreteller:
    """A Proposer that knows the text, at most 6 tokens beyond the committed ones. It stays in what
    a test holds until the gate is open.
    """

    def __init__(self, step: int = 3, held_in: str = "") -> None:
        self.step, self.heard, self.resent, self.opened = step, list[int](), 0, 0
        self._held_in, self.gate = held_in, threading.Event()

    def _pass(self, what: str) -> None:
        if what == self._held_in:
            assert self.gate.wait(SECONDS)

    def open(self, prompt: Sequence[int], params: SamplingParams, end: int | None = None) -> None:
        self._pass("open")
        self.opened, self.heard = self.opened + 1, []
        self.base, self.start = len(prompt) - 1, len(prompt)
        self.named = self.sent = len(prompt)  # positions before which all is named, and sent
        self.numbers: dict[int, int] = {}

    def on_new_stream(self) -> None:
        self.resent += 1
        self.sent = self.base + 1

    def on_progress(self, progress: Progress, now: float) -> None:
        assert progress.position == self.base + 1
        self._pass("on_progress")
        self.heard += progress.tokens
        self.base += len(progress.tokens)
        self.named, self.sent = max(self.named, self.base + 1), max(self.sent, self.base + 1)

    def work(self, now: float) -> DraftUsage | None:
        self._pass("work")
        most = min(self.base + 7, self.start + len(TEXT))
        before, self.named = self.named, min(self.named + self.step, most)
        return DraftUsage(1) if self.named > before else None

    def flush(self, now: float, first: int) -> Nodes | None:
        if self.sent == self.named:
            return None
        self._pass("flush")
        found = list[Candidate]()
        for number, position in enumerate(range(self.sent, self.named), first):
            parent = BASE if position == self.base + 1 else self.numbers[position - 1]
            self.numbers[position] = number
            found.append(Candidate(number, parent, TEXT[position - self.start]))
        self.sent = self.named
        return nodes_of(self.base, found, COPY)

    def close(self) -> None: ...


class Told(LocalSession):
    """What a loop tells its session. It loses its stream after so many messages."""

    def __init__(self, engine: Engine, loses_after: int = 10**9) -> None:
        super().__init__(engine)
        self.gone: list[int] = []
        self.proposed: list[Nodes] = []
        self._loses_after = loses_after

    def propose(self, nodes: Nodes) -> None:
        self.proposed.append(nodes)
        super().propose(nodes)
        if len(self.proposed) == self._loses_after:
            self._engine.leave(self._live, self._proposals)
            self._proposals = self._engine.join(self._live)
            self.stream, self.next_number = self.stream + 1, 0

    def go(self, base: int) -> None:
        self.gone.append(base)
        super().go(base)


def made(session: LocalSession, proposer: Foreteller, pace: Pace = Pace.GO_ON) -> list[Step]:
    order = Decode(len(PROMPT) + len(TEXT), pace=pace)
    steps = list(decode(PROMPT, SamplingParams(), session, order, [proposer]))
    session.close()
    return [step for step in steps if step.tokens]


def tokens_of(steps: Sequence[Step]) -> list[int]:
    return [token for step in steps for token in step.tokens]


@pytest.mark.parametrize("pace", Pace, ids=lambda pace: pace.name)
def test_a_proposer_hears_all_tokens_in_order_and_its_own_are_named(pace: Pace) -> None:
    engine, _, _ = exact_engine(times=free)
    session, proposer = Told(engine), Foreteller()
    steps = made(session, proposer, pace=pace)
    assert tokens_of(steps) == TEXT
    assert proposer.heard == tokens_of(steps[:-1])  # nothing follows the last
    assert len(steps) < 10
    assert {kind for step in steps for kind in step.proposers[:-1]} == {COPY}


class Silent(Foreteller):
    """It finds what it finds without a call."""

    def work(self, now: float) -> DraftUsage | None:
        super().work(now)
        return None


@pytest.mark.parametrize(("proposer", "step"), [(Foreteller, 3), (Silent, 6)])
def test_a_target_that_waits_is_told_to_go_once_for_each_root_when_nothing_more_is_named(
    proposer: type[Foreteller], step: int
) -> None:
    engine, model, _ = exact_engine()
    session = Told(engine)
    steps = made(session, proposer(step), pace=Pace.WAIT)
    roots = [len(PROMPT) - 1]
    for one in steps[:-1]:
        roots.append(roots[-1] + len(one.tokens))
    assert session.gone == roots
    assert [nodes for _, nodes in model.calls[1:-1]] == [7] * (len(steps) - 1)


def test_a_lost_stream_is_told_everything_again() -> None:
    engine, _, _ = exact_engine(times=free)
    session, proposer = Told(engine, loses_after=3), Foreteller()
    assert tokens_of(made(session, proposer)) == TEXT
    assert proposer.resent == 1
    again = session.proposed[3]
    assert (again.first, again.parents[0]) == (0, 0)


def test_what_was_found_is_sent_after_what_came_meanwhile_was_heard() -> None:
    engine, _, _ = exact_engine(times=free)
    session, proposer = Told(engine), Foreteller()
    loop = begun(session, inline([proposer]))
    while not proposer.heard:
        loop.step(1.0)
    assert loop.step(0.0) == NOTHING  # a call is made
    found, sent = proposer.named, proposer.sent
    assert found > sent
    engine.step()
    assert loop.step(0.0).tokens
    assert proposer.sent == max(sent, proposer.base + 1)
    loop.step(0.0)
    assert proposer.sent == found
    assert session.proposed[-1].base == proposer.base
    session.close()


def test_proposers_take_turns_and_what_one_finds_waits_for_no_other() -> None:
    engine, _, _ = exact_engine()
    session, both = Told(engine), [Foreteller(step=1) for _ in range(2)]
    loop = begun(session, inline(both))
    for _ in range(4):
        loop.step(0.0)
    assert [one.named - len(PROMPT) for one in both] == [2, 2]
    assert len(session.proposed) == 3
    session.close()


def threaded(proposers: Sequence[Proposer]) -> Drafter:
    """Let these proposers work on a thread of their own, for one text after the other."""
    turn = threading.Lock()  # of the texts: a call of the last one may still be under way

    @contextmanager
    def lend(wanted: Callable[[], bool]) -> Iterator[Sequence[Proposer]]:
        with turn:
            yield proposers

    return on_thread(lend)


def begun(session: TargetSession, drafter: Drafter, pace: Pace = Pace.GO_ON) -> Loop:
    order = Decode(len(PROMPT) + len(TEXT), pace=pace)
    return Loop(PROMPT, SamplingParams(), session, order, drafter)


def text_of(session: TargetSession, drafter: Drafter, pace: Pace = Pace.GO_ON) -> list[int]:
    with closing(session), closing(begun(session, drafter, pace)) as loop:
        return [token for step in loop.steps() for token in step.tokens]


def drafting_thread() -> threading.Thread | None:
    return next((one for one in threading.enumerate() if one.name == "outrider draft"), None)


def left() -> None:
    """Wait until no thread drafts any more."""
    while (thread := drafting_thread()) is not None:
        thread.join(SECONDS)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("held_in", "pace"),
    [("open", Pace.WAIT), *((at, Pace.GO_ON) for at in ("open", "on_progress", "work", "flush"))],
)
def test_a_text_ends_while_its_draft_is_held_up(held_in: str, pace: Pace) -> None:
    """A target that waits goes on while no draft has joined."""
    session, proposer = Told(exact_engine()[0]), Foreteller(held_in=held_in)
    assert text_of(session, threaded([proposer]), pace) == TEXT
    thread = drafting_thread()
    assert thread is not None
    assert thread.is_alive()
    proposed = len(session.proposed)
    proposer.gate.set()
    left()
    assert len(session.proposed) == proposed  # nothing is sent behind the end


def test_a_text_begins_while_its_draft_still_loads() -> None:
    loaded = threading.Event()

    @contextmanager
    def lend(wanted: Callable[[], bool]) -> Iterator[Sequence[Proposer]]:
        assert loaded.wait(SECONDS)
        assert not wanted()
        yield ()

    assert text_of(LocalSession(exact_engine()[0]), on_thread(lend)) == TEXT
    loaded.set()
    left()


def test_a_proposer_that_joins_late_hears_all_tokens_in_order() -> None:
    proposer, session = Foreteller(held_in="open"), Told(exact_engine()[0])
    loop, made = begun(session, threaded([proposer])), list[int]()
    while len(made) < 10:
        made += loop.step(1.0).tokens
    assert not session.proposed
    proposer.gate.set()
    while not session.proposed:
        made += loop.step(0.01).tokens
    assert proposer.heard == made[: len(proposer.heard)]
    assert len(proposer.heard) >= 10
    loop.close()
    left()
    session.close()


def test_an_error_of_the_draft_is_raised_where_the_text_is_read() -> None:
    class Faulty(Foreteller):
        def work(self, now: float) -> DraftUsage | None:
            raise RuntimeError("the draft's model fails")

    session = LocalSession(exact_engine()[0])
    loop = begun(session, threaded([Faulty()]))
    left()
    with pytest.raises(RuntimeError, match="the draft's model fails"):
        list(loop.steps())
    loop.close()
    session.close()


def test_the_next_text_has_the_draft_once_its_last_call_is_over() -> None:
    proposer = Foreteller(held_in="work")
    drafter, session = threaded([proposer]), Told(exact_engine()[0])
    assert text_of(session, drafter) == TEXT
    loop = begun(session, drafter)
    assert loop.step(1.0).tokens
    assert proposer.opened == 1
    proposer.gate.set()
    while proposer.opened == 1:
        loop.step(0.01)
    loop.close()
    left()
    session.close()


def test_calls_are_counted_for_the_text_that_they_were_made_for() -> None:
    proposer, session = growing(perturbed(1, 0.02)), LocalSession(engine(decoder(1)))
    usage = list[Drafting]()
    for _ in range(2):
        order = Decode(len(PROMPT) + 20)
        with closing(Loop(PROMPT, SamplingParams(), session, order, inline([proposer]))) as loop:
            assert sum(len(step.tokens) for step in loop.steps()) == 20
        usage.append(loop.drafting)
    session.close()
    assert sum(one.usage.calls for one in usage) == proposer.usage.calls
    assert sum(one.usage.seconds for one in usage) == pytest.approx(proposer.usage.seconds)


def test_signs_of_life_cut_no_forward_short() -> None:
    """A target says about every second that it is there: a slow forward is longer than that."""
    silence, now = Baseline(), Clock()
    with closing(LocalSession(exact_engine()[0])) as session:
        session.open(PROMPT, SamplingParams())
        drafting = Drafting(PROMPT, SamplingParams(), session, Decode(40), now)
        drafting.open((), Throttle(silence))
        for forward in range(4):
            for tokens in ((), (), (7,)):
                now.now += 1.0
                news = progress(3 + forward, *tokens, forwards=len(tokens), lone=len(tokens))
                drafting.on_progress(news)
            drafting.turn()
    assert list(silence.seconds) == [2.0, 3.0, 3.0, 3.0]  # the first is timed from a sign of life
