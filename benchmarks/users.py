"""Users of a target that think, ask and wait, over and over: at an engine, or at a target that serves one after the other."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from itertools import count
from typing import Protocol

from benchmarks.scripted import ScriptedDraft, Text
from inference.accept import accept_match
from inference.backends import Model
from inference.engine import Engine
from inference.sampling import SamplingParams
from inference.sequence import ModelSequence
from inference.session import Answer
from inference.tree import TokenTree

NODES = 16
"""Nodes of every tree, unless the target asks for fewer."""


class Seat(Protocol):
    """One user's place at a target."""

    @property
    def root(self) -> int: ...

    def ask(self, tree: TokenTree) -> Future[Answer]: ...

    def restart(self) -> None:
        """Take back all that followed the prompt."""
        ...


class EngineSeat:
    """A session of an engine that batches."""

    def __init__(self, engine: Engine, prompt: Sequence[int]) -> None:
        self._engine, self._prompt = engine, len(prompt)
        self._session, self.opened = engine.open(prompt, SamplingParams())

    @property
    def root(self) -> int:
        return self._session.root

    def ask(self, tree: TokenTree) -> Future[Answer]:
        return self._engine.verify(self._session, tree)

    def restart(self) -> None:
        self._engine.rewind(self._session, self._prompt)


class QueueSeat:
    """A sequence of a target that serves one tree after the other, on the thread of `queue`."""

    def __init__(self, queue: Executor, model: Model, row: int, prompt: Sequence[int]) -> None:
        self._queue, self._model, self._row, self._prompt = queue, model, row, prompt
        self._sequence = ModelSequence(model, row, SamplingParams())
        self._sequence.extend(prompt[:-1])
        self.root = prompt[-1]

    def ask(self, tree: TokenTree) -> Future[Answer]:
        return self._queue.submit(self._verify, tree)

    def restart(self) -> None:
        slots = self._sequence.slots
        slots.trim(len(self._prompt) - 1)
        self._sequence = ModelSequence(self._model, self._row, SamplingParams(), slots)
        self.root = self._prompt[-1]

    def _verify(self, tree: TokenTree) -> Answer:
        verdict = accept_match(tree, self._sequence.choose(tree))
        self._sequence.commit(tree, verdict.path)
        self.root = verdict.next_token
        return Answer(verdict, 0.0, 0.0, NODES)


class Alarm:
    """Calls functions later, on a thread of its own that ends with the context."""

    def __init__(self) -> None:
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers, self._changed, self._ended = count(), threading.Condition(), False
        self._thread = threading.Thread(target=self._ring)

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        with self._changed:
            heapq.heappush(self._calls, (time.perf_counter() + seconds, next(self._numbers), call))
            self._changed.notify()

    def _ring(self) -> None:
        while (call := self._next()) is not None:
            call()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._ended:
                left = self._calls[0][0] - time.perf_counter() if self._calls else None
                if left is not None and left <= 0:
                    return heapq.heappop(self._calls)[2]
                self._changed.wait(left)
        return None

    def __enter__(self) -> Alarm:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()


class User:
    """Thinks, asks and waits for the answer, over and over."""

    def __init__(
        self, seat: Seat, text: Text, vocabulary: int, turn: int, alarm: Alarm, think: float
    ) -> None:
        self._seat, self._alarm, self._think = seat, alarm, think
        self._draft = ScriptedDraft(text, vocabulary, turn)
        self._budget = NODES
        self._answers: list[tuple[float, int]] = []  # when, and tokens

    def begin(self, seconds: float) -> None:
        self._alarm.after(seconds, self._ask)

    def tokens_a_second(self, since: float) -> float:
        """Of the rounds that began and ended after this moment."""
        answers = [answer for answer in self._answers if answer[0] >= since]
        return sum(tokens for _, tokens in answers[1:]) / (answers[-1][0] - answers[0][0])

    def rounds_a_second(self, since: float) -> float:
        times = [when for when, _ in self._answers if when >= since]
        return (len(times) - 1) / (times[-1] - times[0])

    def _ask(self) -> None:
        if self._draft.at_end:
            self._seat.restart()
            self._draft.restart()
        tree = self._draft.draft(self._seat.root, min(self._budget, NODES))
        self._seat.ask(tree).add_done_callback(self._answered)

    def _answered(self, done: Future[Answer]) -> None:
        if done.exception() is not None:  # the engine has stopped
            return
        answer = done.result()
        self._draft.commit(answer.verdict)
        self._budget = answer.budget
        self._answers.append((time.perf_counter(), len(answer.verdict.path) + 1))
        self._alarm.after(self._think, self._ask)


@contextmanager
def running(engine: Engine) -> Iterator[None]:
    """The engine on a thread of its own."""
    stopped = threading.Event()
    thread = threading.Thread(target=engine.run, args=(stopped,))
    thread.start()
    try:
        yield
    finally:
        engine.stop(stopped)
        thread.join()
