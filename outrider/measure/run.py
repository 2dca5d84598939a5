"""The loop of every measurement: all arms make each text in turn, and a journal keeps it.

The order of arms is drawn anew for each turn, so that none always follows the same other. Before
each text the target makes one token of its prompt, so the prompt's keys are equally warm for all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf
from random import Random
from threading import Event, Timer
from typing import NamedTuple

from inference.command import say
from inference.cost.energy import find_readers
from inference.errors import Unavailable
from outrider.measure.account import read_meters
from outrider.measure.arms import Arm
from outrider.measure.journal import Journal, TextKey, Values
from outrider.text.completion import Request
from outrider.text.prompts import PromptTooLong

WARM_UP_TOKENS = 8
"""Tokens that each arm makes before anything counts."""


def unscored(text: str) -> bool | None:
    """No score: the task has no right answer."""
    return None


class Task(NamedTuple):
    """A prompt of a run, which may be a conversation.

    request: the request of the next turn, after the answers to earlier ones. Raises PromptTooLong.
    score: whether the last answer is right; None where it cannot be scored
    """

    set: str
    kind: str
    name: str
    request: Callable[[Sequence[str]], Request]
    turns: int = 1
    score: Callable[[str], bool | None] = unscored


@dataclass
class Run:
    """Texts of some arms over one link. A text that the journal holds is not made again.

    deadline: of time.perf_counter(); no prompt is begun that would pass it
    text_seconds: a text is cut after these
    """

    journal: Journal
    arms: Sequence[Arm]
    rtt_ms: float = 0.0
    deadline: float = inf
    text_seconds: float | None = None
    _made: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._readers, self._begun = find_readers(), time.perf_counter()

    def warm_up(self, request: Request) -> None:
        """Let every arm make a few tokens that do not count."""
        few = replace(request, max_new_tokens=min(WARM_UP_TOKENS, request.max_new_tokens))
        for arm in self.arms:
            arm.make(few, Event())

    def make(self, tasks: Sequence[Task], repeats: Sequence[int] = (0,)) -> None:
        """Make the texts of these repetitions, until they end or the time does."""
        places, slowest = [*product(repeats, enumerate(tasks))], 0.0
        for place, (repeat, (index, task)) in enumerate(places, start=1):
            before, begun = self._made, time.perf_counter()
            if begun + slowest > self.deadline:
                return
            self._converse(task, index, repeat)
            if self._made > before:
                slowest = max(slowest, time.perf_counter() - begun)
                each = (time.perf_counter() - self._begun) / self._made
                turns = sum(task.turns for _, (_, task) in places[place:])
                left = min(each * turns * len(self.arms), self.deadline - time.perf_counter())
                say(f"{place} of {len(places)}: {task.kind} {task.name}; {left / 60:.1f} min left")

    def _converse(self, task: Task, index: int, repeat: int) -> None:
        """Make all turns of a prompt by all arms. Each arm continues its own answers."""
        answers = {arm.name: list[str]() for arm in self.arms}
        for turn in range(task.turns):
            order = Random(f"{repeat} {index} {turn}")  # noqa: S311 (which arm is first is no secret)
            for arm in order.sample(self.arms, len(self.arms)):
                key = TextKey(*task[:3], turn, repeat, self.rtt_ms, arm.name)
                text = self.journal.known.texts.get(key)
                if text is None:
                    try:
                        request = task.request(answers[arm.name])
                    except PromptTooLong as error:
                        say(f"left out: {task.kind} {task.name}, turn {turn + 1}: {error}")
                        return
                    text = self._text(arm, task, key, request)
                    self.journal.write("text", text)
                    self._made += 1
                answers[arm.name].append(text["text"])

    def _text(self, arm: Arm, task: Task, key: TextKey, request: Request) -> Values:
        """Make a text, with the meters read meanwhile. Returns its record."""
        arm.alone(replace(request, max_new_tokens=1), Event())
        with _cut_after(self.text_seconds) as cut:
            reading = read_meters(self._readers, lambda: arm.make(request, cut))
        done = reading.done
        if not done.whole and not (cut.is_set() and done.token_ids):
            raise Unavailable(f"a text was not made whole: it ended as {done.finish_reason}")
        charges = arm.account.charges(reading)
        return {
            **done.record(),
            **key._asdict(),
            "limit": request.max_new_tokens,
            "score": task.score(done.text) if key.turn + 1 == task.turns else None,
            **{name: figure.record() for name, figure in charges.items()},
        }


@contextmanager
def _cut_after(seconds: float | None) -> Iterator[Event]:
    """An event that is set after so many seconds, if any."""
    cut = Event()
    timer = None if seconds is None else Timer(seconds, cut.set)
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield cut
    finally:
        if timer is not None:
            timer.cancel()
