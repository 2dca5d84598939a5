"""The client's decoding loop passes on committed tokens, while proposers run ahead of the target.

Neither side waits. The target streams the tokens that it commits. The loop passes them on at once,
and proposers get them before their next call (inference/loop/draft_thread.py). With pace WAIT the
target runs a forward pass only when the proposers have finished, which is a synchronous round.

The loop is independent of text, networks and devices. It runs on the caller's thread, and the
caller stops it by closing it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Protocol, TypeAlias

from inference.loop.draft_thread import CandidateSink, Drafter, Drafting, inline
from inference.loop.stats import Traffic
from inference.order import Decode, End, Progress, TokenLogProb
from inference.proposer import Proposer
from inference.sampling import SamplingParams

TICK_SECONDS = 0.1
"""Seconds after which a waiting loop yields an empty step, so that its caller can react."""


class TargetSession(CandidateSink, Protocol):
    """The target's side of a text, in process or over a network."""

    @property
    def traffic(self) -> Traffic: ...

    @property
    def prompt_logprobs(self) -> tuple[TokenLogProb, ...]:
        """Log-probabilities of the prompt's tokens but the first, if requested: available before
        the first progress.
        """
        ...

    def open(self, prompt: Sequence[int], params: SamplingParams) -> None:
        """Begin a text. If the session is refused, the error is raised here or by receive()."""
        ...

    def decode(self, order: Decode) -> None:
        """Set the session's order, which replaces an earlier one."""
        ...

    def receive(self, timeout: float) -> Progress | None:
        """New committed tokens with their costs, or the end of the text; None after `timeout`
        seconds.

        Raises the error that ended the session.
        """
        ...

    def close(self) -> None: ...


Step: TypeAlias = Progress
"""Newly committed tokens; NOTHING when there were none within the timeout."""

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
    """Yield steps whose tokens together are the target's own seeded decoding of the prompt.

    Proposers work on the caller's thread. Raises the error that refused or ended the session.
    """
    with closing(Loop(prompt, params, session, order, inline(proposers), clock)) as loop:
        yield from loop.steps()


class Loop:
    """The decoding of a text. Close it before its session.

    drafter: begins the drafting of the text
    drafting: the work of its proposers
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
        """Yield steps up to the end of the text. Raises the error that ended the session."""
        while not self.ended:
            yield self.step(TICK_SECONDS)

    def step(self, timeout: float) -> Step:
        """Take new tokens; else let the drafter work; else wait up to `timeout` seconds.

        Raises the error that ended the session or the drafting.
        """
        progress = self._session.receive(0)
        if progress is None and not self._work():
            progress = self._session.receive(timeout)
        return NOTHING if progress is None else self._take(progress)

    def close(self) -> None:
        """End the drafting, without waiting for a call in progress."""
        self.drafting.end()

    def _take(self, progress: Progress) -> Step:
        self.ended = progress.end is not End.NOT
        if not self.ended:
            self.drafting.on_progress(progress)
        return progress
