"""The client's decoding loop: it takes committed tokens and lets proposers run ahead of the target.

Nobody waits for anybody. The target streams the tokens that it commits. The loop hands them to the
proposers, which re-root. Proposers work whenever no tokens have come. With pace WAIT the target
makes a forward only when the proposers have finished, which is a synchronous round.

The loop knows nothing of text, networks or devices. It runs on the caller's thread, and the caller
stops it by leaving the generator. Proposers' models are called on this thread only, so nothing
changes during a call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from inference.candidates import Nodes
from inference.order import Decode, End, Pace, Progress
from inference.proposer import Notice, Proposer
from inference.sampling import SamplingParams
from inference.stats import Traffic

TICK_SECONDS = 0.1
"""Seconds after which a waiting loop yields an empty step, so that its caller can react."""


class TargetSession(Protocol):
    """The target's side of one text, in process or behind a network.

    stream: number of the current stream; it changes when the target has lost earlier proposals.
    room: candidates that a forward takes from this session at present.
    """

    @property
    def traffic(self) -> Traffic: ...

    @property
    def stream(self) -> int: ...

    @property
    def room(self) -> int: ...

    def open(self, prompt: Sequence[int], params: SamplingParams) -> None:
        """Begin a text. An error that refuses the session is raised here or by receive()."""
        ...

    def decode(self, order: Decode) -> None:
        """Let the target decode as ordered; replaces an earlier order."""
        ...

    def next_number(self) -> int:
        """A number for a node of the current stream."""
        ...

    def propose(self, nodes: Nodes) -> None:
        """Send candidates. The message is a hint and may be lost."""
        ...

    def go(self, base: int) -> None:
        """With pace WAIT: ask for one forward whose root is the token at position `base`."""
        ...

    def receive(self, timeout: float) -> Progress | None:
        """New committed tokens, or the end of the text; None after `timeout` seconds.

        Raises the error that ended the session.
        """
        ...

    def close(self) -> None: ...


class Step(NamedTuple):
    """Newly committed tokens; empty when none came within the timeout."""

    tokens: tuple[int, ...]
    proposers: tuple[int, ...]  # [tokens] kind of the proposer that had named each, or NOBODY
    end: End = End.NOT


NOTHING = Step((), ())


def decode(
    prompt: Sequence[int],
    params: SamplingParams,
    session: TargetSession,
    order: Decode,
    proposers: Sequence[Proposer] = (),
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Step]:
    """Yield steps whose tokens together are the target's own seeded decoding of the prompt.

    Raises the error that refused or ended the session.
    """
    loop = Loop(prompt, params, session, order, proposers, clock)
    while not loop.ended:
        yield loop.step(TICK_SECONDS)


class Loop:
    """One text being decoded. length: tokens of the text so far, prompt included."""

    def __init__(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        session: TargetSession,
        order: Decode,
        proposers: Sequence[Proposer],
        clock: Callable[[], float],
    ) -> None:
        self._session, self._order, self._clock = session, order, clock
        self._proposers = list(proposers)  # in the order in which they may make a call
        self.length, self.ended = len(prompt), order.end <= len(prompt)
        session.open(prompt, params)
        session.decode(order)
        for proposer in proposers:
            proposer.open(prompt, params, order.end)
        self._stream, self._told = session.stream, -1
        self._before: Progress | None = None

    def step(self, timeout: float) -> Step:
        """Take new tokens; else make one proposer's call; else wait up to `timeout` seconds.

        Raises the error that ended the session.
        """
        progress = self._session.receive(0)
        if progress is None and not self._propose():
            progress = self._session.receive(timeout)
        return NOTHING if progress is None else self._take(progress)

    def _take(self, progress: Progress) -> Step:
        now = self._clock()
        self.length += len(progress.tokens)
        self.ended = progress.end is not End.NOT
        if progress.tokens and not self.ended:
            notice = notice_of(self._before, progress, now)
            for proposer in self._proposers:
                proposer.hear(progress.position, progress.tokens, now, notice)
        self._before = progress
        return Step(progress.tokens, progress.proposers, progress.end)

    def _propose(self) -> bool:
        """Send new candidates, then let one proposer make a call; False when none made one.

        Candidates are sent only after all received tokens were heard. A new root makes some of
        them worthless, and makes other nodes worth sending.
        """
        if self._session.stream != self._stream:
            self._stream, self._told = self._session.stream, -1
            for proposer in self._proposers:
                proposer.resend()
        self._flush()
        for index, proposer in enumerate(self._proposers):
            if proposer.work(self._clock()):
                self._proposers.append(self._proposers.pop(index))  # the others come first now
                return True
        self._flush()  # candidates that were found without a call
        if self._order.pace is Pace.WAIT and self._told != self.length:
            self._session.go(self.length - 1)
            self._told = self.length
        return False

    def _flush(self) -> None:
        for proposer in self._proposers:
            next_number = self._session.next_number
            while (nodes := proposer.flush(self._clock(), next_number)) is not None:
                self._session.propose(nodes)


def notice_of(before: Progress | None, now: Progress, at: float) -> Notice:
    """The notice for tokens that came at time `at` (seconds), from two progress reports."""
    forwards, seconds = now.forwards, now.model_seconds + now.queue_seconds
    if before is not None:
        forwards -= before.forwards
        seconds -= before.model_seconds + before.queue_seconds
    return Notice(at, seconds / max(forwards, 1), now.known, now.held, now.room)
