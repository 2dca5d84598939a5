"""Drafting during decoding: proposers get committed tokens, run the draft and send candidates, on a
separate thread, or on the loop's thread while no tokens arrive.
"""

from __future__ import annotations

import math
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

from inference.loop.throttle import Throttle
from inference.order import Decode, Pace, Progress
from inference.proposer import DraftUsage, Nodes, Proposer
from inference.sampling import SamplingParams

LOOK_SECONDS = 0.1
"""Seconds after which idle proposers are asked again, since the value of a draft call changes."""


TURN_SECONDS = 0.0005
"""Seconds for which a Python thread runs while others wait. Python's default of 5 ms, each time a
token is handed over, would be noticeable to the reader while a draft runs Python code.
"""


def take_short_turns() -> None:
    """Make the threads of this process take short turns, so that a busy draft delays no output."""
    sys.setswitchinterval(TURN_SECONDS)


class CandidateSink(Protocol):
    """The part of a target's session that receives candidates. Any thread may call it.

    stream: number of the current stream; it changes if the target has lost earlier proposals.
    next_number: number of the next node of the current stream
    """

    @property
    def stream(self) -> int: ...

    @property
    def next_number(self) -> int: ...

    def propose(self, nodes: Nodes) -> None:
        """Send candidates. The message may be lost."""
        ...

    def go(self, base: int) -> None:
        """Request a forward pass whose root is the token at position `base`, with pace WAIT."""
        ...


class Drafting:
    """The drafting for one request, once its session is open.

    The loop's thread calls on_progress(), check(), end() and settle(); the drafter's thread calls
    open(), turn() and run(). Nothing is sent after end().

    length: tokens so far, prompt included
    usage: work of the proposers' models for this request
    """

    _proposers: list[Proposer] | None  # in the order in which they may make a call
    _arrivals: deque[tuple[float, Progress]]  # time and progress, not passed to proposers yet
    _error: Exception | None

    def __init__(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        session: CandidateSink,
        order: Decode,
        clock: Callable[[], float],
    ) -> None:
        self.length, self.usage = len(prompt), DraftUsage()
        self._prompt, self._params = prompt, params
        self._session, self._order, self._clock = session, order, clock
        self._proposers, self._arrivals = None, deque()
        self._stream, self._requested = session.stream, -1
        self._news = threading.Event()
        self._sending, self._running = threading.Lock(), threading.Lock()
        self._ended, self._error = False, None
        self._progress_at = self._busy_until = -math.inf  # times of last progress, last call
        self._busy_from = -math.inf

    def is_wanted(self) -> bool:
        """Whether the output continues."""
        return not self._ended

    def on_progress(self, progress: Progress) -> None:
        """Queue progress, which the proposers get before their next call."""
        self.length += len(progress.tokens)
        self._arrivals.append((self._clock(), progress))
        self._news.set()

    def check(self) -> bool:
        """Let a waiting target continue while no draft has joined. Raises the error of drafting."""
        if self._error is not None:
            raise self._error
        if self._proposers is None:
            self._go()
        return False

    def end(self) -> None:
        """End drafting after the call in progress, without waiting for that call."""
        with self._sending:
            self._ended = True
        self._news.set()

    def settle(self) -> None:
        """Wait for the call that was in progress when the output ended."""
        with self._running:
            pass

    def fail(self, error: Exception) -> None:
        """Store the error, which check() raises. Raises it at once if the output has ended."""
        if self._ended:
            raise error
        self._error = error

    def open(self, proposers: Sequence[Proposer], throttle: Throttle | None = None) -> None:
        """Let these proposers join. They get all tokens, beginning with the prompt.

        throttle: limits calls on the target's own machine
        """
        for proposer in proposers:
            proposer.open(self._prompt, self._params, self._order.end)
        self._throttle = throttle
        self._busy_until = self._clock()  # loading used the machine, too
        self._stream, self._proposers = self._session.stream, list(proposers)

    def run(self) -> None:
        """Draft until the output ends."""
        with self._running:
            while self.is_wanted():
                self._news.clear()
                if not self.turn():
                    self._news.wait(LOOK_SECONDS)

    def turn(self) -> bool:
        """Send new candidates, then let one proposer make a call. Return False if none did.

        Candidates are sent only after proposers got all received tokens, because a new root makes
        some candidates worthless, and makes other nodes worth sending.
        """
        assert self._proposers is not None, "open() comes first"
        while self._arrivals:
            self._process(*self._arrivals.popleft())
        if self._session.stream != self._stream:
            self._stream, self._requested = self._session.stream, -1
            for proposer in self._proposers:
                proposer.on_new_stream()
        self._flush(self._proposers)
        throttle, waits = self._throttle, self._order.pace is Pace.WAIT
        calls = throttle is None or waits or throttle.allows
        for index, proposer in enumerate(self._proposers if calls else ()):
            self._busy_from = self._clock()
            used = proposer.work(self._busy_from)
            if used is not None:
                self._busy_until, self.usage = self._clock(), self.usage.plus(used)
                self._proposers.append(self._proposers.pop(index))  # others get the next turn
                return True
        self._flush(self._proposers)  # candidates that needed no call
        self._go()
        return False

    def _process(self, at: float, progress: Progress) -> None:
        first, forwards = self._progress_at == -math.inf, progress.forwards
        assert at >= self._progress_at, "the clock went back"
        if progress.tokens and self._throttle is not None and not first:
            silent = self._progress_at >= self._busy_until or at <= self._busy_from
            seconds, lone = at - self._progress_at, progress.lone == forwards
            tokens = len(progress.tokens)
            self._throttle.observe(seconds, tokens, forwards, lone=lone, silent=silent)
        if progress.tokens or first:  # a heartbeat does not show that a forward pass ended
            self._progress_at = at
        if progress.tokens:
            for proposer in self._proposers or ():
                proposer.on_progress(progress, at)

    def _flush(self, proposers: Sequence[Proposer]) -> None:
        for proposer in proposers:
            session = self._session
            while (nodes := proposer.flush(self._clock(), session.next_number)) is not None:
                with self._sending:
                    if not self._ended:
                        session.propose(nodes)

    def _go(self) -> None:
        """Request the forward pass after the latest token, once, with pace WAIT."""
        if self._order.pace is not Pace.WAIT or self._requested == self.length:
            return
        with self._sending:
            if not self._ended:
                self._requested = self.length
                self._session.go(self.length - 1)


Drafter: TypeAlias = Callable[[Drafting], Callable[[], bool]]
"""Begins drafting for a request. Returns a function for the loop to call while no tokens arrive,
which returns whether it made a draft call.
"""

Lend: TypeAlias = Callable[[Callable[[], bool]], AbstractContextManager[Sequence[Proposer]]]
"""Lends proposers for a request, once they are loaded and free. May wait."""


def inline(proposers: Sequence[Proposer] = ()) -> Drafter:
    """Let the proposers work on the loop's thread, while no tokens arrive.

    With a virtual clock, decoding is then reproducible.
    """

    def begin(drafting: Drafting) -> Callable[[], bool]:
        drafting.open(proposers)
        return drafting.turn

    return begin


def on_thread(lend: Lend, throttle: Throttle | None = None) -> Drafter:
    """Let lent proposers work on a separate thread, so that they never delay a token.

    At the end of the output the thread ends after its call in progress; the loop does not wait.

    throttle: limits calls on the target's own machine; None for another machine
    """

    def begin(drafting: Drafting) -> Callable[[], bool]:
        def draft() -> None:
            try:
                with lend(drafting.is_wanted) as proposers:
                    drafting.open(proposers, throttle)
                    drafting.run()
            except Exception as error:  # raised again in the thread that reads the text
                drafting.fail(error)

        threading.Thread(target=draft, name="outrider draft").start()
        return drafting.check

    return begin
