"""The loop of every measurement: all arms generate each text in turn, and a journal keeps it.

The order of arms is drawn anew for each turn, so that none always follows the same other. Before
each text the target makes one token of its prompt, so the prompt's keys are equally warm for all.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf
from random import Random
from threading import Event

from inference.command import say
from inference.cost.energy import EnergyMeter, find_readers
from inference.errors import Unavailable
from outrider.measure.arms import Arm
from outrider.measure.journal import Journal, TextKey, Values
from outrider.measure.progress import progress
from outrider.measure.tasks import Task
from outrider.text.completion import Completion, Request
from outrider.text.prompts import PromptTooLong

WARM_UP_TOKENS = 8
"""Tokens that each arm generates before anything counts."""


@dataclass
class Run:
    """Texts of some arms over one link. A text that the journal holds is not generated again.

    warm: let every arm generate a few tokens first
    seconds: to generate texts in; no prompt is started that would exceed them
    """

    journal: Journal
    arms: Sequence[Arm]
    rtt_ms: float = 0.0
    warm: bool = True
    seconds: float = inf
    latest: dict[str, Completion] = field(default_factory=dict, init=False)  # by the arm

    def __post_init__(self) -> None:
        self._readers = find_readers()

    def warm_up(self, request: Request) -> None:
        """Let every arm generate a few tokens that do not count."""
        few = replace(request, max_new_tokens=min(WARM_UP_TOKENS, request.max_new_tokens))
        for arm in self.arms:
            arm.make(few, Event())

    def make(self, tasks: Sequence[Task], repeats: Sequence[int] = (0,)) -> None:
        """Generate the texts of these repetitions, until they end or the time does."""
        start, slowest = time.perf_counter(), 0.0
        with progress(len(repeats) * len(tasks)) as report:
            for repeat, (index, task) in product(repeats, enumerate(tasks)):
                begin = time.perf_counter()
                if begin - start + slowest > self.seconds:
                    return
                self._converse(task, index, repeat)
                slowest = max(slowest, time.perf_counter() - begin)
                report(f"{task.kind} {task.name}")

    def _converse(self, task: Task, index: int, repeat: int) -> None:
        """Generate all turns of a prompt by all arms. Each arm continues its own answers."""
        answers = {arm.name: list[str]() for arm in self.arms}
        for turn in range(task.turns):
            order = Random(f"{repeat} {index} {turn}")  # noqa: S311 (which arm is first is no secret)
            for arm in order.sample(self.arms, len(self.arms)):
                key = TextKey(*task[:3], turn, repeat, self.rtt_ms, arm.name)
                text = self.journal.run.texts.get(key)
                if text is None:
                    try:
                        request = task.request(answers[arm.name])
                    except PromptTooLong as error:
                        say(f"left out: {task.kind} {task.name}, turn {turn + 1}: {error}")
                        return
                    if self.warm:
                        self.warm_up(request)
                        self.warm = False
                    text = self._text(arm, key, request)
                    self.journal.write("text", text)
                answers[arm.name].append(text["text"])

    def _text(self, arm: Arm, key: TextKey, request: Request) -> Values:
        """Generate a text, with the meters read meanwhile. Returns its record."""
        arm.alone(replace(request, max_new_tokens=1), Event())
        with EnergyMeter(self._readers) as meter:
            done = arm.make(request, Event())
        if not done.whole:
            raise Unavailable(f"a text was not generated whole: it ended as {done.finish_reason}")
        self.latest[arm.name], costs = done, arm.costs(done, meter.known)
        return {
            **done.record(),
            **key._asdict(),
            **{name: figure.record() for name, figure in costs.items()},
        }
