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

AWAY_SECONDS = 10.0
"""Seconds of silence after which a target counts as away, even if its link is up."""

MOST_UNVERIFIED = 256
"""Tokens that a draft makes alone at most while the target is away."""


class TargetSession(Protocol):
    """The target's side of one text, in process or behind a network.

    stream: number of the current stream; it changes when the target has lost earlier proposals.
    room: candidates that a forward takes from this session at present.
    lost: the connection is down and being restored.
    """

    @property
    def traffic(self) -> Traffic: ...

    @property
    def stream(self) -> int: ...

    @property
    def room(self) -> int: ...

    @property
    def lost(self) -> bool: ...

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


class Unverified(NamedTuple):
    """A token of the draft alone, shown while the target is away. Later steps may replace it."""

    token: int


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


def decode_offline(
    prompt: Sequence[int],
    params: SamplingParams,
    session: TargetSession,
    order: Decode,
    proposer: Proposer,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Step | Unverified]:
    """Yield steps as decode() does, and the draft's own tokens while the target is away.

    Raises the error that refused or ended the session.
    """
    loop = Loop(prompt, params, session, order, [proposer], clock)
    guess: list[int] = []
    while not loop.ended:
        step = loop.step(TICK_SECONDS)
        if step.tokens:
            right = guess[: len(step.tokens)] == list(step.tokens)
            guess = guess[len(step.tokens) :] if right else []
        yield step
        if not loop.ended and loop.away:
            most = min(MOST_UNVERIFIED, order.end - loop.length, len(guess) + 1)
            path = proposer.path(most)
            if len(path) > len(guess) and not order.stop_ids & set(guess):
                guess.append(path[len(guess)])
                yield Unverified(guess[-1])


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
        self._stream, self._told, self._heard_at = session.stream, -1, clock()
        self._before: Progress | None = None

    @property
    def away(self) -> bool:
        """Whether the target is lost or silent for AWAY_SECONDS."""
        return self._session.lost or self._clock() - self._heard_at > AWAY_SECONDS

    def step(self, timeout: float) -> Step:
        """Take new tokens; else make one proposer's call; else wait up to `timeout` seconds.

        Raises the error that ended the session.
        """
        progress = self._session.receive(0)
        if progress is None and not self._propose():
            progress = self._session.receive(timeout)
        return NOTHING if progress is None else self._take(progress)

    def _take(self, progress: Progress) -> Step:
        self._heard_at = now = self._clock()
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
