"""The loop: the target goes on by itself, proposers run ahead of it, tokens become a text.

Nobody waits for anybody. The target streams what it commits; the loop hands it to the proposers,
which re-root, and lets them work whenever nothing has come. With pace WAIT the target makes a
forward only when the proposers have nothing more to say, which is a synchronous round.

The loop knows nothing of text, networks or devices. It runs on one thread: the caller's. The caller
stops by leaving the generator. A proposer's model is called on this thread only, so that nothing
changes under it while a call is made.
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
"""A waiting loop says so often that nothing has come, so that its caller can look around."""

AWAY_SECONDS = 10.0
"""A target that says nothing for so long is away, even if its link seems to be there."""

MOST_UNVERIFIED = 256
"""Tokens that a draft goes on alone while the target is away."""


class TargetSession(Protocol):
    """The target's side of one text, in process or behind a network.

    stream: changes when the target knows nothing of earlier proposals any more.
    room: candidates that a forward has for this session at present.
    lost: the target is being looked for.
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
        """Begin. What refuses the session is raised here or by receive()."""
        ...

    def decode(self, order: Decode) -> None:
        """Let the target decode; replaces an earlier order."""
        ...

    def next_number(self) -> int:
        """A number for a node of the current stream."""
        ...

    def propose(self, nodes: Nodes) -> None:
        """Send candidates. A hint: it may be lost."""
        ...

    def go(self, base: int) -> None:
        """Pace WAIT: make a forward below the token at position `base`."""
        ...

    def receive(self, timeout: float) -> Progress | None:
        """What was committed and not returned yet, or an end; None after `timeout` seconds.

        Raises what ended the session.
        """
        ...

    def close(self) -> None: ...


class Step(NamedTuple):
    """Tokens that became certain; none when nothing came for a while.

    proposers: [tokens] who had named each of them, or NOBODY.
    """

    tokens: tuple[int, ...]
    proposers: tuple[int, ...]
    end: End = End.NOT


class Unverified(NamedTuple):
    """A token that the draft went on with alone. Steps say later what is true from here on."""

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
    """Steps whose tokens, put together, are the target's own seeded decoding of the prompt."""
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
    """decode() for a target that may be away: the draft's own tokens stand in meanwhile."""
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
    """One text being made. length: of the text so far, prompt included."""

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
        self._proposers = list(proposers)  # whose turn it is to make a call comes first
        self.length, self.ended = len(prompt), order.end <= len(prompt)
        session.open(prompt, params)
        session.decode(order)
        for proposer in proposers:
            proposer.open(prompt, params, order.end)
        self._stream, self._told, self._heard_at = session.stream, -1, clock()
        self._before: Progress | None = None

    @property
    def away(self) -> bool:
        """The target does not answer, and will not soon."""
        return self._session.lost or self._clock() - self._heard_at > AWAY_SECONDS

    def step(self, timeout: float) -> Step:
        """What has come, else one call of a proposer, else what comes within `timeout` seconds."""
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
        """Send what proposers have found, then let one of them make a call; False when none had one
        to make.

        What was found waits until everything that came meanwhile was heard: a new root makes some
        of it worthless, and other nodes worth sending.
        """
        if self._session.stream != self._stream:
            self._stream, self._told = self._session.stream, -1
            for proposer in self._proposers:
                proposer.resend()
        self._flush()
        for index, proposer in enumerate(self._proposers):
            if proposer.work(self._clock()):
                self._proposers.append(self._proposers.pop(index))  # others come before it now
                return True
        self._flush()  # what was found without a call
        if self._order.pace is Pace.WAIT and self._told != self.length:
            self._session.go(self.length - 1)
            self._told = self.length
        return False

    def _flush(self) -> None:
        for proposer in self._proposers:
            nodes = proposer.flush(self._clock(), self._session.next_number)
            if nodes is not None:
                self._session.propose(nodes)


def notice_of(before: Progress | None, now: Progress, at: float) -> Notice:
    """What proposers hear beside the tokens that came `at` this moment."""
    forwards, seconds = now.forwards, now.model_seconds + now.queue_seconds
    if before is not None:
        forwards -= before.forwards
        seconds -= before.model_seconds + before.queue_seconds
    return Notice(at, seconds / max(forwards, 1), now.known, now.held, now.room)
