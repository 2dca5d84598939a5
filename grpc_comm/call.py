"""One stream to a target, as the client's side sees it. The caller's thread sends, a reader thread resolves what is owed."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeAlias

import grpc

from grpc_comm import translate
from grpc_comm.proto import verifier_pb2 as pb
from inference.accept import Verdict
from inference.decode import Superseded
from inference.errors import Mismatch, OutriderError, Unavailable
from inference.session import promise
from inference.stats import Traffic
from inference.tree import TokenTree

CLOSE_SECONDS = 2.0

Start = Callable[[Iterator[pb.ClientMessage]], Any]
"""Starts the call, given the messages that will be sent."""

Answer: TypeAlias = "Future[Any] | queue.SimpleQueue[Any]"


class _Owed(NamedTuple):
    """What the target has yet to say. since: when it was asked; infinite once its first word has come.  number, tree: of a round.

    ahead: nobody waits for it yet.
    """

    kind: str
    answer: Answer
    since: float
    number: int = 0
    tree: TokenTree | None = None
    ahead: bool = False


class Verified(NamedTuple):
    """A verdict, and how many nodes the next tree may have, root included."""

    verdict: Verdict
    budget: int


class Call:
    """A bidirectional stream. Answers are owed in the order of asking, and only rounds are asked for before the last is answered; a stream
    that ends fails them.

    failure: why the stream ended, None while it is alive.  leaving: the target said that it goes away.
    """

    def __init__(self, start: Start, traffic: Traffic, address: str) -> None:
        self._traffic, self._address = (
            traffic,
            address,
        )  # bytes_up is written by the caller's thread, the rest by the reader's
        self._outbox: queue.SimpleQueue[pb.ClientMessage | None] = queue.SimpleQueue()
        self._lock = (
            threading.Lock()
        )  # guards the next two, so that no answer is owed by a stream that has ended
        self._owed: deque[_Owed] = deque()
        self.failure: OutriderError | None = None
        self.leaving: str | None = None
        self._left, self._ended = False, threading.Event()
        self._last_sent = time.monotonic()
        self._call = start(iter(self._outbox.get, None))
        self._reader = threading.Thread(target=self._read, name="outrider stream", daemon=True)
        self._reader.start()

    def begin(self, message: pb.ClientMessage) -> Future[pb.Opened]:
        """Open or Resume."""
        opened: Future[pb.Opened] = promise()
        self._ask(_Owed("opened", opened, time.perf_counter()), message)
        return opened

    def verify(self, message: pb.Round, tree: TokenTree) -> Future[Verified]:
        verified: Future[Verified] = promise()
        self._ask(
            _Owed("verdict", verified, time.perf_counter(), message.number, tree, message.ahead),
            pb.ClientMessage(round=message),
        )
        return verified

    def drop_rounds(self) -> None:
        """The target will not answer the rounds that are owed."""
        with self._lock:
            owed = [*self._owed]
            self._owed.clear()
        for one in owed:
            _fail(one.answer, Superseded("the round before it came out otherwise"))

    def generate(self, message: pb.Continue) -> Iterator[pb.Tokens]:
        """Messages until one is the last; raises what ends the stream before."""
        tokens: queue.SimpleQueue[pb.Tokens | OutriderError] = queue.SimpleQueue()
        self._ask(_Owed("tokens", tokens, time.perf_counter()), pb.ClientMessage(generate=message))
        last = False
        while not last:
            answer = tokens.get()
            if isinstance(answer, OutriderError):
                raise answer
            last = answer.last
            yield answer

    def halt(self) -> None:
        """End what generate() brings, with a last message."""
        self._send(pb.ClientMessage(halt=pb.Halt()))

    def heartbeat(self, seconds: float) -> None:
        """Say something if nothing was said for so long."""
        if self.failure is None and time.monotonic() - self._last_sent >= seconds:
            self._send(pb.ClientMessage(heartbeat=pb.Heartbeat()))

    def close(self) -> None:
        """Ask the target to end the session; when it is busy, or does not answer, cancel the call. What was owed has failed then."""
        if not self._ended.is_set():
            with self._lock:
                idle = all(one.ahead for one in self._owed)
            self._send(pb.ClientMessage(close=pb.Close()))
            self._outbox.put(None)
            if not (idle and self._ended.wait(CLOSE_SECONDS)):
                return self.cancel()
        self._settle()

    def cancel(self) -> None:
        """End the call without asking; the target may hold the session for its lease."""
        self._left = True
        self._call.cancel()
        self._settle()

    def _settle(self) -> None:
        """Let the reader tell the failure to whoever waits."""
        if threading.current_thread() is not self._reader:
            self._reader.join(CLOSE_SECONDS)

    def _ask(self, owed: _Owed, message: pb.ClientMessage) -> None:
        with self._lock:
            assert not self._owed or owed.kind == self._owed[-1].kind == "verdict", (
                "one at a time: the last answer is still owed"
            )
            failure = self.failure
            if failure is None:
                self._owed.append(owed)
        if failure is None:
            self._send(message)
        else:
            _fail(owed.answer, failure)

    def _send(self, message: pb.ClientMessage) -> None:
        self._last_sent = time.monotonic()
        self._traffic.bytes_up += message.ByteSize()
        self._outbox.put(message)

    def _read(self) -> None:
        """The reader thread: answers until the stream ends, then failure for whatever is owed."""
        failure: OutriderError = Unavailable("the session is closed")
        try:
            for message in self._call:
                self._count(message)
                self._receive(message)
        except grpc.RpcError as error:
            if not self._left:
                failure = translate.status_error(error, f"the target at {self._address} went away")
            failure.__cause__ = error
        except Mismatch as error:
            failure = error
            self._call.cancel()
        finally:
            self._end(failure)

    def _receive(self, message: pb.ServerMessage) -> None:
        kind = message.WhichOneof("kind")
        if kind == "go_away":
            self.leaving = message.go_away.reason
            return
        self._time(kind)
        with self._lock:
            owed = self._owed[0] if self._owed and self._owed[0].kind == kind else None
            if owed is not None and not (kind == "tokens" and not message.tokens.last):
                self._owed.popleft()
        if owed is None:
            raise Mismatch(f"the target at {self._address} answered what was not asked: {kind}")
        self._resolve(owed, message)

    def _resolve(self, owed: _Owed, message: pb.ServerMessage) -> None:
        if isinstance(owed.answer, queue.SimpleQueue):
            owed.answer.put(message.tokens)
        elif owed.kind == "opened":
            owed.answer.set_result(message.opened)
        else:
            assert owed.tree is not None
            try:
                verdict = translate.read_verdict(message.verdict, owed.number, owed.tree)
            except Mismatch as error:
                owed.answer.set_exception(error)
                raise
            owed.answer.set_result(Verified(verdict, message.verdict.budget))

    def _time(self, kind: str | None) -> None:
        """The first word of an answer."""
        with self._lock:
            owed = self._owed[0] if self._owed else None
            if owed is not None and owed.kind == "tokens" == kind:
                self._owed[0] = owed._replace(since=math.inf)  # only the first
        if owed is not None and owed.since < math.inf:
            self._traffic.away_seconds += time.perf_counter() - owed.since

    def _count(self, message: pb.ServerMessage) -> None:
        traffic = self._traffic
        traffic.bytes_down += message.ByteSize()
        if message.HasField("opened"):
            traffic.queue_seconds += message.opened.queue_seconds
            traffic.prefill_seconds += message.opened.prefill_seconds
            traffic.reused_tokens += message.opened.reused_tokens
        elif not message.HasField("go_away"):
            step = message.verdict if message.HasField("verdict") else message.tokens
            traffic.queue_seconds += step.queue_microseconds / 1e6
            traffic.model_seconds += step.model_microseconds / 1e6

    def _end(self, failure: OutriderError) -> None:
        self._outbox.put(None)  # releases gRPC's sender
        with self._lock:
            self.failure = failure
            owed = [*self._owed]
            self._owed.clear()
        self._ended.set()
        for one in owed:
            _fail(one.answer, failure)


def _fail(answer: Answer, failure: OutriderError) -> None:
    if isinstance(answer, queue.SimpleQueue):
        answer.put(failure)
    else:
        answer.set_exception(failure)
