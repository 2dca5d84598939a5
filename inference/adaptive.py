"""The loop that adapts: rounds as a Pilot grows them, and stretches of the target's own where a Navigator finds that better."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

from inference.accept import Verdict
from inference.decode import Step, Verifier
from inference.drafters.adaptive import AdaptiveDrafter
from inference.forecast import DISTRIBUTED, FUSED
from inference.navigator import Navigator
from inference.objective import Effort
from inference.policy import Budget
from inference.sampling import SamplingParams
from inference.tree import TokenTree

FIRST_DECISIONS, ROUNDS_A_DECISION = (2, 4), 8
"""Rounds after which the course is looked at again: early, when little is known, then every so many."""

FOLLOWED = 8
"""Tokens that the draft takes in at once while the target goes on without it; then the course is looked at again."""

AT_ONCE = 0.003
"""Tokens that come within so many seconds of each other are of one message."""


def decode_adaptive(
    prompt: Sequence[int],
    params: SamplingParams,
    drafter: AdaptiveDrafter,
    verifier: Verifier,
    navigator: Navigator,
    max_new_tokens: int,
    stop_ids: frozenset[int],
) -> Iterator[Step]:
    """Rounds whose tokens, put together, are the first of the target's own seeded decoding; a stop id may be followed by more."""
    loop = _Loop(prompt, drafter, verifier, navigator, stop_ids)
    loop.open(prompt, params)
    remaining = max_new_tokens
    while remaining > 0:
        steps = (
            loop.rounds(remaining)
            if navigator.course.architecture == DISTRIBUTED
            else loop.stretch(remaining)
        )
        for step in steps:
            remaining -= len(step.tokens)
            yield step
            if stop_ids.intersection(step.tokens):
                return


class _Flight(NamedTuple):
    """A tree on its way. assumed: tokens that the one before it is expected to commit, where that one is under way, too."""

    tree: TokenTree
    pending: Future[Verdict]
    assumed: int


@dataclass
class _Pace:
    """Of tokens as they come, message by message. The first message counts as the beginning: it was waited for in another way."""

    first: float = 0.0  # when the first message came
    latest: float = 0.0  # when the last token came
    tokens: int = 0
    begun_with: int = 0  # tokens of the first message
    counted: int = 0  # tokens of whole messages after it
    seconds: float = 0.0  # that these took

    def came(self, now: float) -> None:
        if not self.tokens:
            self.first = now
        elif now - self.latest >= AT_ONCE:  # another message
            self.begun_with = self.begun_with or self.tokens
            self.counted, self.seconds = self.tokens - self.begun_with, self.latest - self.first
        self.tokens, self.latest = self.tokens + 1, now


class _Loop:
    """One text being made."""

    def __init__(
        self,
        prompt: Sequence[int],
        drafter: AdaptiveDrafter,
        verifier: Verifier,
        navigator: Navigator,
        stop_ids: frozenset[int],
    ) -> None:
        self._drafter, self._pilot, self._verifier, self._navigator = (
            drafter,
            drafter.pilot,
            verifier,
            navigator,
        )
        self._root, self._stop_ids = prompt[-1], stop_ids

    def open(self, prompt: Sequence[int], params: SamplingParams) -> None:
        self._navigator.greedy = params.greedy
        before = self._verifier.traffic.copy()
        opened = self._verifier.open(prompt, params)
        self._drafter.open(prompt, params)
        self._take_course()
        opened.result()
        now = self._verifier.traffic
        at_target = (
            now.queue_seconds - before.queue_seconds + now.prefill_seconds - before.prefill_seconds
        )
        moved = now.bytes_up - before.bytes_up + now.bytes_down - before.bytes_down
        self._pilot.known.link.observe(now.away_seconds - before.away_seconds, at_target, moved)

    def rounds(self, most: int) -> Iterator[Step]:
        """Rounds, until there are enough tokens or another course is taken."""
        flights, made = deque[_Flight](), 0
        self._pilot.begin(self._verifier.traffic)
        while most > 0:
            if not flights:
                tree = self._drafter.draft(self._root, self._budget(most))
                flights.append(_Flight(tree, self._verifier.submit(tree), 0))
            due = made in FIRST_DECISIONS or (made and made % ROUNDS_A_DECISION == 0)
            if (
                due and not self._navigator.settled
            ):  # while a verdict is under way there is time for it
                self._navigator.measured(self._pilot.tokens, self._pilot.effort)
                self._decide()
            staying = self._navigator.course.architecture == DISTRIBUTED
            verdict = self._wait(flights, most if staying else 0)
            step = Step(flights.popleft().tree, verdict)
            self._drafter.commit(step.tree, verdict)
            if not self._drafter.goes_on:
                flights.clear()
            self._root, most, made = verdict.next_token, most - len(step.tokens), made + 1
            self._pilot.arrived(
                self._verifier.traffic, len(step.tree), len(step.tokens), bool(flights)
            )
            yield step
            if not flights and self._navigator.course.architecture != DISTRIBUTED:
                return

    def _wait(self, flights: deque[_Flight], most: int) -> Verdict:
        """The verdict of the first tree under way; meanwhile more is drafted, and sent ahead, for up to `most` tokens in all."""
        while not flights[0].pending.done():
            left = most - sum(flight.assumed for flight in flights) + flights[0].assumed
            onward = self._drafter.onward(left, self._verifier.tree_budget - 1)
            if onward is not None:
                pending = self._verifier.submit(onward.tree, onward.assumed)
                flights.append(_Flight(onward.tree, pending, len(onward.assumed)))
            elif not self._drafter.ahead():
                break
        return flights[0].pending.result()

    def _budget(self, most: int) -> Budget:
        return Budget(self._verifier.tree_budget - 1, most - 1)

    def stretch(self, most: int) -> Iterator[Step]:
        """Tokens that the target makes without waiting for anybody, with its own draft or without, until another course is taken; the draft
        here comes after them."""
        architecture, before, asked = (
            self._navigator.course.architecture,
            self._verifier.traffic.copy(),
            self._pilot.clock(),
        )
        pace, behind = _Pace(), list[int]()

        def left() -> bool:
            return self._navigator.course.architecture != architecture

        for token in self._verifier.generate(
            most, self._stop_ids, fused=architecture == FUSED, enough=left
        ):
            pace.came(self._pilot.clock())
            yield Step(TokenTree.chain([self._root]), Verdict((), token), architecture)
            self._root = token
            behind.append(token)
            if len(behind) == FOLLOWED:
                self._drafter.follow(behind)
                behind = []
                down = self._verifier.traffic.bytes_down - before.bytes_down
                self._navigator.measured(pace.counted, Effort(pace.seconds, 0.0, 0.0, down))
                if not left():
                    self._decide()
        if behind:
            self._drafter.follow(behind)
        if (
            pace.tokens and architecture != FUSED
        ):  # a draft there takes in the text before its first round
            self._pilot.known.link.observe(
                pace.first - asked,
                self._pilot.known.target.seconds(1, 1) + self._pilot.known.queue,
                0,
            )

    def _decide(self) -> None:
        self._navigator.decide()
        self._take_course()

    def _take_course(self) -> None:
        course = self._navigator.course
        self._pilot.tariff = course.tariff
        self._pilot.expect(
            course.forecast.tokens, course.forecast.effort.times(course.forecast.tokens)
        )
