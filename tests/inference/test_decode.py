"""The loop between a session and its proposers: who is told what, and when."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from inference.engine.engine import Engine
from inference.engine.sessions.local_session import LocalSession
from inference.loop.decode import NOTHING, Loop, Step, decode
from inference.loop.draft_thread import inline
from inference.order import Decode, Pace, Progress
from inference.proposer import COPY, DraftUsage, Nodes
from inference.sampling import SamplingParams
from tests.support.exact import exact_engine, free, own_text
from tests.support.scripted import BASE, Candidate, nodes_of

PROMPT = [1, 2, 3]
TEXT = own_text(PROMPT, 60)


class Foreteller:
    """A Proposer that knows the text, at most `ahead` beyond the committed tokens."""

    def __init__(self, text: Sequence[int], ahead: int = 6, step: int = 3) -> None:
        self.text, self.ahead, self.step = text, ahead, step
        self.heard: list[tuple[int, tuple[int, ...]]] = []
        self.resent = 0

    def open(self, prompt: Sequence[int], params: SamplingParams, end: int | None = None) -> None:
        self.base, self.start = len(prompt) - 1, len(prompt)
        self.named = self.sent = len(prompt)  # positions before which all is named, and sent
        self.numbers: dict[int, int] = {}

    def on_new_stream(self) -> None:
        self.resent += 1
        self.sent = self.base + 1

    def on_progress(self, progress: Progress, now: float) -> None:
        assert progress.position == self.base + 1
        self.heard.append((progress.position, progress.tokens))
        self.base += len(progress.tokens)
        self.named, self.sent = max(self.named, self.base + 1), max(self.sent, self.base + 1)

    def work(self, now: float) -> DraftUsage | None:
        most = min(self.base + 1 + self.ahead, self.start + len(self.text))
        before, self.named = self.named, min(self.named + self.step, most)
        return DraftUsage(1) if self.named > before else None

    def flush(self, now: float, first: int) -> Nodes | None:
        found = list[Candidate]()
        for number, position in enumerate(range(self.sent, self.named), first):
            parent = BASE if position == self.base + 1 else self.numbers[position - 1]
            self.numbers[position] = number
            found.append(Candidate(number, parent, self.text[position - self.start]))
        self.sent = self.named
        return nodes_of(self.base, found, COPY) if found else None

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


def made(
    session: LocalSession, *proposers: Foreteller, tokens: int = 40, pace: Pace = Pace.GO_ON
) -> list[Step]:
    order = Decode(len(PROMPT) + tokens, pace=pace)
    steps = list(decode(PROMPT, SamplingParams(), session, order, proposers))
    session.close()
    return [step for step in steps if step.tokens]


def tokens_of(steps: Sequence[Step]) -> list[int]:
    return [token for step in steps for token in step.tokens]


@pytest.mark.parametrize("pace", Pace, ids=lambda pace: pace.name)
def test_a_proposer_hears_all_tokens_in_order_and_its_own_are_named(pace: Pace) -> None:
    engine, _, _ = exact_engine(times=free)
    session, proposer = Told(engine), Foreteller(TEXT[:40])
    steps = made(session, proposer, pace=pace)
    assert tokens_of(steps) == TEXT[:40]
    heard = [token for _, tokens in proposer.heard for token in tokens]
    assert heard == tokens_of(steps[:-1])  # nothing follows the last
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
    steps = made(session, proposer(TEXT[:40], step=step), pace=Pace.WAIT)
    roots = [len(PROMPT) - 1]
    for one in steps[:-1]:
        roots.append(roots[-1] + len(one.tokens))
    assert session.gone == roots
    assert [nodes for _, nodes in model.calls[1:-1]] == [7] * (len(steps) - 1)


def test_a_lost_stream_is_told_everything_again() -> None:
    engine, _, _ = exact_engine(times=free)
    session, proposer = Told(engine, loses_after=3), Foreteller(TEXT[:40])
    assert tokens_of(made(session, proposer)) == TEXT[:40]
    assert proposer.resent == 1
    again = session.proposed[3]
    assert (again.first, again.parents[0]) == (0, 0)


def test_what_was_found_is_sent_after_what_came_meanwhile_was_heard() -> None:
    engine, _, _ = exact_engine(times=free)
    session, proposer = Told(engine), Foreteller(TEXT[:40])
    loop = Loop(
        PROMPT, SamplingParams(), session, Decode(len(PROMPT) + 40), inline([proposer]), lambda: 0
    )
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
    session, both = Told(engine), [Foreteller(TEXT[:40], step=1) for _ in range(2)]
    loop = Loop(
        PROMPT, SamplingParams(), session, Decode(len(PROMPT) + 40), inline(both), lambda: 0
    )
    for _ in range(4):
        loop.step(0.0)
    assert [one.named - len(PROMPT) for one in both] == [2, 2]
    assert len(session.proposed) == 3
    session.close()
