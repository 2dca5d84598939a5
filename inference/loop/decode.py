"""The client's decoding loop: passes on committed tokens, while proposers run ahead of the target.

Neither side waits, except with pace WAIT: then the target runs a forward pass only after the
proposers have finished. The loop runs on the caller's thread, who stops it by closing it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Protocol, TypeAlias

from inference.loop.draft_thread import CandidateSink, Drafter, Drafting, inline
from inference.order import Decode, End, Progress, TokenLogProb
from inference.proposer import Proposer
from inference.sampling import SamplingParams
from inference.text_log import Traffic

TICK_SECONDS = 0.1
"""Seconds after which a waiting loop yields an empty step, to give control to its caller."""


class TargetSession(CandidateSink, Protocol):
    """A session with a target, in this process or over a network."""

    @property
    def traffic(self) -> Traffic: ...

    @property
    def prompt_logprobs(self) -> tuple[TokenLogProb, ...]:
        """Log-probabilities of the prompt's tokens except the first, if requested. Available before
        the first progress.
        """
        ...

    def open(self, prompt: Sequence[int], params: SamplingParams) -> None:
        """Open the session. If the target refuses it, open() or receive() raises the error."""
        ...

    def decode(self, order: Decode) -> None:
        """Set the session's order, replacing any earlier order."""
        ...

    def receive(self, timeout: float) -> Progress | None:
        """Return new committed tokens with their costs, or the end of the output; None after
        `timeout` seconds.

        Raises the error that ended the session.
        """
        ...

    def close(self) -> None: ...


Step: TypeAlias = Progress
"""Newly committed tokens; NOTHING if there were none within the timeout."""

NOTHING = Step()


def decode(
    prompt: Sequence[int],
    params: SamplingParams,
    session: TargetSession,
    order: Decode,
    proposers: Sequence[Proposer] = (),
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Step]:
    """Yield steps whose tokens are exactly the target's own seeded decoding of the prompt.

    Proposers work on the caller's thread. Raises the error that refused or ended the session.
    """
    with closing(Loop(prompt, params, session, order, inline(proposers), clock)) as loop:
        yield from loop.steps()


class Loop:
    """The decoding of one request. Close the loop before its session.

    drafter: begins drafting for the request
    drafting: the work of the request's proposers
    """

    def __init__(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        session: TargetSession,
        order: Decode,
        drafter: Drafter,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Raises the error that refused the session."""
        self._session, self.ended = session, order.end <= len(prompt)
        session.open(prompt, params)
        session.decode(order)
        self.drafting = Drafting(prompt, params, session, order, clock)
        self._work = drafter(self.drafting)

    def steps(self) -> Iterator[Step]:
        """Yield steps up to the end of the output. Raises the error that ended the session."""
        while not self.ended:
            yield self.step(TICK_SECONDS)

    def step(self, timeout: float) -> Step:
        """Return new tokens if any; else let the drafter work; else wait up to `timeout` seconds.

        Raises the error that ended the session or the drafting.
        """
        progress = self._session.receive(0)
        if progress is None and not self._work():
            progress = self._session.receive(timeout)
        if progress is None:
            return NOTHING
        self.ended = progress.end is not End.NOT
        if not self.ended:
            self.drafting.on_progress(progress)
        return progress

    def close(self) -> None:
        """End drafting, without waiting for a call in progress."""
        self.drafting.end()
