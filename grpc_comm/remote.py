"""A Verifier whose target is elsewhere, and who keeps its session when the link breaks, the target restarts or goes away.

The client knows every committed token, so any target of the same model can go on: the one that holds the session resumes it,
another prefills once. What is asked again brings the same tokens.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

from grpc_comm import translate
from grpc_comm.call import Call, Start, Verified
from grpc_comm.digest import PrefixDigest
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.rounds_ahead import RoundsAhead
from grpc_comm.translate import Description
from inference.accept import Verdict
from inference.decode import Superseded, never
from inference.errors import Busy, Gone, LimitExceeded, Mismatch, OutriderError, Unavailable
from inference.policy import Policy
from inference.sampling import SamplingParams
from inference.session import promise
from inference.stats import Traffic
from inference.tree import TokenTree

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
"""Seconds between attempts: between nothing and twice as much each time."""

RESUME_SECONDS = 5.0
"""A target that holds the session says so at once; one that says nothing is not there."""

REACH_SECONDS = 3.0
"""For a connection to come about: TCP, TLS and HTTP/2 over a slow link, after gRPC's own back-off of a second."""


@dataclass(frozen=True)
class Patience:
    """For how many seconds a lost target is looked for (0: not at all), and who is told what happens meanwhile."""

    seconds: float = 0.0
    notice: Callable[[str], None] = lambda line: None


class Line(Protocol):
    """The way to `targets` targets that serve the same model; index i is target i modulo `targets`."""

    @property
    def description(self) -> Description: ...

    @property
    def targets(self) -> int: ...

    def address(self, index: int) -> str: ...

    def start(self, index: int) -> Start:
        """How to begin a stream to it."""
        ...

    def reach(self, index: int, seconds: float, given_up: threading.Event) -> None:
        """Wait until it answers; raises Unavailable after so many seconds, or when the event is set."""
        ...


class RemoteVerifier:
    """A Verifier (inference.decode); one session at a time. Leaving generate() early ends the session.

    The target computes with `params.on_the_wire()`.
    """

    def __init__(self, line: Line, patience: Patience) -> None:
        self._line, self._patience = line, patience
        self._call: Call | None = None
        self._closed = threading.Event()
        self._at = 0  # index of the target that has the session
        self._tokens: list[int] = []
        self._params, self._digest = SamplingParams(), PrefixDigest()
        self._opened: pb.Opened | None = None
        self._epoch, self._rounds = 0, 0
        self._ahead = RoundsAhead()
        self._mending: threading.Thread | None = None
        self.traffic = Traffic()
        self.tree_budget = line.description.max_tree_nodes

    @property
    def lost(self) -> bool:
        """The target is being looked for."""
        return (
            self._call is not None and self._call.failure is not None and not self._closed.is_set()
        )

    def open(self, prompt: Sequence[int], params: SamplingParams) -> Future[None]:
        self.close()
        if self._mending is not None and self._mending is not threading.current_thread():
            self._mending.join()  # it ends, now that the session is closed, and knows nothing of the next one
        length = self._line.description.sequence_length
        if len(prompt) >= length:  # the target would not even read it
            raise LimitExceeded(
                f"a prompt of {len(prompt)} tokens leaves no room: the sequence length is {length}, prompt and output together"
            )
        self._tokens, self._params, self._digest = list(prompt), params, PrefixDigest()
        self._opened, self._closed = None, threading.Event()
        done: Future[None] = promise()
        self._begin(self._at, self._opening()).add_done_callback(
            lambda opened: self._first_answer(opened, done)
        )
        return done

    def submit(self, tree: TokenTree, assumed: Sequence[int] | None = None) -> Future[Verdict]:
        done: Future[Verdict] = promise()
        if assumed is not None:
            self._submit_ahead(tree, list(assumed), done)
        elif self._must_move:
            self._in_background(done, lambda: self._again(tree, done))
        else:
            self._verify(self._live, tree, done)
        return done

    def generate(
        self,
        max_tokens: int,
        stop_ids: frozenset[int],
        *,
        fused: bool = False,
        policy: Policy | None = None,
        enough: Callable[[], bool] = never,
    ) -> Iterator[int]:
        left, halted = max_tokens, False
        done = left < 1
        try:
            while not done:
                if self._must_move:
                    self._reattach()
                try:
                    asked = translate.write_continue(
                        left,
                        stop_ids,
                        len(self._tokens),
                        self._digest.of(self._tokens),
                        fused,
                        policy,
                    )
                    for message in self._live.generate(asked):
                        self._tokens += message.ids
                        left, done = left - len(message.ids), message.last
                        yield from message.ids
                        if self._asked_to_leave:
                            break
                        if not (done or halted) and enough():
                            self._live.halt()
                            halted = True
                except Unavailable as error:
                    self._give_up_unless_recoverable(error)
                done = done or halted
        finally:
            if not done:
                self.close()

    def close(self) -> None:
        """End the session, waiting a moment for the target's confirmation. Idempotent."""
        self._closed.set()
        if self._call is not None:
            self._call.close()

    def abandon(self) -> None:
        """The connection is about to close: the target will not be looked for."""
        self._closed.set()

    def heartbeat(self) -> None:
        """Keep the session while there is nothing to ask."""
        if self._call is not None and self._opened is not None and not self._closed.is_set():
            self._call.heartbeat(self._opened.lease_seconds / 3)

    def _first_answer(self, opened: Future[pb.Opened], done: Future[None]) -> None:
        error = opened.exception()
        if error is None:
            try:
                self._accept(self._at, opened.result())
            except Mismatch as mismatch:
                return done.set_exception(mismatch)
            done.set_result(None)
        elif self._recoverable(error):
            self._in_background(done, lambda: self._open_again(done))
        else:
            done.set_exception(error)

    def _open_again(self, done: Future[None]) -> None:
        self._reattach()
        done.set_result(None)

    def _verify(self, call: Call, tree: TokenTree, done: Future[Verdict]) -> None:
        tree = tree.prefix(self.tree_budget)  # it was drafted for a target that took larger ones
        message = translate.write_round(
            self._rounds, len(self._tokens), self._digest.of(self._tokens), tree
        )
        self._ahead.begin()
        call.verify(message, tree).add_done_callback(
            lambda verified: self._answered(tree, verified, done)
        )

    def _submit_ahead(self, tree: TokenTree, assumed: list[int], done: Future[Verdict]) -> None:
        """Before the verdict of the round before it, if that may still come out as assumed."""
        with self._ahead.lock:
            before = (
                self._ahead.assume(assumed)
                if self._live.failure is None and not self._asked_to_leave
                else None
            )
            if before is not None:
                tokens, tree = [*self._tokens, *before], tree.prefix(self.tree_budget)
                number = self._rounds + self._ahead.under_way - 1
                message = translate.write_round(
                    number, len(tokens), PrefixDigest().of(tokens), tree, ahead=True
                )
                verified = self._live.verify(message, tree)
        if before is None:
            done.set_exception(Superseded("the round before it came out otherwise"))
        else:
            verified.add_done_callback(lambda verified: self._answered(tree, verified, done))

    def _answered(self, tree: TokenTree, verified: Future[Verified], done: Future[Verdict]) -> None:
        """On the reader's thread."""
        error = verified.exception()
        if error is None:
            with self._ahead.lock:
                verdict, self.tree_budget = verified.result()
                tokens = [*tree.tokens[list(verdict.path)].tolist(), verdict.next_token]
                self._tokens += tokens
                self._rounds += 1
                if not self._ahead.answered(tokens):
                    self._live.drop_rounds()
            done.set_result(verdict)
        elif self._ahead.lost():
            done.set_exception(
                Superseded("the stream broke before the round before it was answered")
            )
        elif self._recoverable(error):
            self._in_background(done, lambda: self._again(tree, done))
        else:
            done.set_exception(error)

    def _again(self, tree: TokenTree, done: Future[Verdict]) -> None:
        self._reattach()
        self._verify(self._live, tree, done)

    @property
    def _must_move(self) -> bool:
        """The stream has ended for a reason that can be mended, or the target said that it goes away."""
        call = self._live
        return self._recoverable(call.failure) if call.failure is not None else self._asked_to_leave

    @property
    def _asked_to_leave(self) -> bool:
        return self._live.leaving is not None and self._patience.seconds > 0

    def _recoverable(self, error: BaseException) -> bool:
        return (
            isinstance(error, Unavailable)
            and self._patience.seconds > 0
            and not self._closed.is_set()
        )

    def _give_up_unless_recoverable(self, error: Unavailable) -> None:
        if not self._recoverable(error):
            raise error

    def _reattach(self) -> None:
        """Get the session back, here or elsewhere; raises the last reason when patience ends."""
        call, deadline, pause = self._live, time.monotonic() + self._patience.seconds, FIRST_PAUSE
        reason: OutriderError = call.failure or Unavailable(
            f"the target at {self._line.address(self._at)} goes away: {call.leaving}"
        )
        leaving = call.leaving is not None
        if leaving:
            call.close()
        self._patience.notice(f"{reason}; looking for it again")
        first = self._at + leaving
        for attempt in count():
            resume = not leaving and attempt % self._line.targets == 0
            try:
                if attempt:
                    self._line.reach(first + attempt, REACH_SECONDS, self._closed)
                self._attach(
                    first + attempt,
                    resume=resume,
                    seconds=max(deadline - time.monotonic(), FIRST_PAUSE),
                )
                return self._patience.notice(f"connected to {self._line.address(self._at)} again")
            except Unavailable as error:
                reason = error
            wait = (
                reason.retry_after * random.uniform(1, 2)
                if isinstance(reason, Busy)
                else random.uniform(0, pause)
            )  # noqa: S311
            pause = min(2 * pause, LONGEST_PAUSE)
            if time.monotonic() + wait > deadline or self._closed.wait(wait):
                raise reason

    def _attach(self, index: int, *, resume: bool, seconds: float) -> None:
        """One attempt at one target: Resume where the session may be held, else, or if it is not, Open."""
        if (
            resume
            and self._opened is not None
            and self._resume(index, self._opened, min(seconds, RESUME_SECONDS))
        ):
            self.traffic.resumes += 1
            return
        again = self._opened is not None
        self._accept(index, self._within(seconds, self._begin(index, self._opening())))
        self.traffic.reopenings += again

    def _resume(self, index: int, opened: pb.Opened, seconds: float) -> bool:
        """Whether the target holds the session and can go on with it."""
        self._epoch += 1
        message = pb.ClientMessage(
            resume=translate.write_resume(opened.session_id, opened.resume_key, self._epoch)
        )
        try:
            resumed = self._within(seconds, self._begin(index, message))
        except Gone:
            return False
        if resumed.length >= len(self._tokens) and resumed.rounds >= self._rounds:
            if (
                resumed.rounds > self._rounds + 1
            ):  # rounds that were sent ahead: their verdicts are asked for again, as new rounds
                self._rounds = resumed.rounds
            return True
        self._live.close()
        return False

    def _opening(self) -> pb.ClientMessage:
        """Of a session with all its tokens."""
        return pb.ClientMessage(
            open=translate.write_open(
                uuid.uuid4().hex, self._line.description, self._tokens, self._params
            )
        )

    def _begin(self, index: int, message: pb.ClientMessage) -> Future[pb.Opened]:
        """A stream to a target, with its first message."""
        self._call = call = Call(self._line.start(index), self.traffic, self._line.address(index))
        answer = call.begin(message)
        if (
            self._closed.is_set()
        ):  # meanwhile, and close() may have looked at the call before this one
            call.cancel()
        return answer

    def _within(self, seconds: float, opened: Future[pb.Opened]) -> pb.Opened:
        try:
            return opened.result(seconds)
        except NotInTime as error:
            self._live.cancel()
            raise Unavailable(f"no answer for {seconds:.0f} s") from error

    def _accept(self, index: int, opened: pb.Opened) -> None:
        """The session is open at this target: from now on it can be resumed there."""
        self.tree_budget = opened.tree_nodes
        if opened.length != len(self._tokens):
            self._live.cancel()
            raise Mismatch(
                f"the target counts {opened.length} committed tokens, the client {len(self._tokens)}"
            )
        self._at, self._opened, self._epoch, self._rounds = index, opened, 0, 0

    def _in_background(self, done: Future[Any], work: Callable[[], None]) -> None:
        """Work that waits for the network, off the caller's and the reader's thread; what it raises is what is owed."""

        def run() -> None:
            try:
                work()
            except OutriderError as error:
                done.set_exception(error)

        self._mending = threading.Thread(target=run, name="outrider reconnect", daemon=True)
        self._mending.start()

    @property
    def _live(self) -> Call:
        assert self._call is not None, "open() comes first"
        return self._call
