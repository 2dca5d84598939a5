"""The draft's side of the wire: a connection to a target, and the Verifiers that share it.

Plain synchronous code. Each session is one bidirectional stream with one reader thread; every failure of the network or
the target reaches the caller as an error of ours, and a failed session fails whatever it still owed.
"""

from __future__ import annotations

import queue
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, NamedTuple

import grpc

from grpc_comm import translate
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.proto import verifier_pb2_grpc
from grpc_comm.security import PLAINTEXT, SecurityOptions, channel_security
from grpc_comm.translate import Description
from grpc_comm.transport import MAX_MESSAGE_BYTES, Address, channel_options, parse_address
from inference.accept import Verdict
from inference.errors import LimitExceeded, Mismatch, OutriderError, Unavailable
from inference.sampling import SamplingParams
from inference.stats import Traffic
from inference.tree import TokenTree

CONNECT_SECONDS = 5.0
CLOSE_SECONDS = 2.0

_Call = Callable[[Iterator[pb.ClientMessage]], Any]


def connect(
    address: str,
    *,
    security: SecurityOptions = PLAINTEXT,
    tokenizer_fingerprint: str | None = None,
    timeout: float = CONNECT_SECONDS,
) -> Connection:
    """A connection to the target at HOST:PORT, which has described itself.

    Raises Unavailable when none answers within `timeout` seconds, and Mismatch when it speaks another protocol or its
    tokenizer is not the given one (None: any will do).
    """
    connection = Connection(parse_address(address), security, timeout)
    if tokenizer_fingerprint not in (None, connection.description.tokenizer_fingerprint):
        connection.close()
        raise translate.tokenizer_mismatch(str(tokenizer_fingerprint), connection.description)
    return connection


class Connection:
    """A channel to one target, shared by any number of verifiers; a context manager. Made by connect()."""

    def __init__(self, address: Address, security: SecurityOptions, timeout: float) -> None:
        self.address = address
        credentials, self._metadata = channel_security(security, address)
        options = channel_options(address)
        if credentials is None:
            self._channel = grpc.insecure_channel(str(address), options)
        else:
            self._channel = grpc.secure_channel(str(address), credentials, options)
        self._stub = verifier_pb2_grpc.TargetStub(self._channel)
        try:
            self.description = self._describe(timeout)
        except OutriderError:
            self.close()
            raise

    def verifier(self) -> RemoteVerifier:
        """A Verifier of its own session; it takes no row before open()."""
        return RemoteVerifier(self._session, self.description, str(self.address))

    def close(self) -> None:
        """End every session on this connection. Idempotent."""
        self._channel.close()

    def _describe(self, timeout: float) -> Description:
        try:
            message = self._stub.Describe(pb.DescribeRequest(), timeout=timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            raise translate.status_error(error, f"no Outrider target answers at {self.address}") from error
        return translate.read_description(message)

    def _session(self, messages: Iterator[pb.ClientMessage]) -> Any:
        try:
            return self._stub.Session(messages, metadata=self._metadata)
        except ValueError as error:  # gRPC's word for a closed channel
            raise Unavailable(f"the connection to {self.address} is closed") from error

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _count(traffic: Traffic, message: pb.ServerMessage) -> None:
    """Add one message from the target."""
    traffic.bytes_down += message.ByteSize()
    if message.WhichOneof("kind") == "opened":
        traffic.queue_seconds += message.opened.queue_seconds
        traffic.prefill_seconds += message.opened.prefill_seconds
        return
    step = message.verdict if message.HasField("verdict") else message.tokens
    traffic.queue_seconds += step.queue_microseconds / 1e6
    traffic.model_seconds += step.model_microseconds / 1e6


class RemoteVerifier:
    """A Verifier (inference.decode) whose target is elsewhere; one session at a time.

    The target computes with `params.on_the_wire()`. Leaving generate() early ends the session.
    """

    def __init__(self, call: _Call, expected: Description, address: str) -> None:
        self._call, self._expected, self._address = call, expected, address
        self._stream: _Stream | None = None
        self.traffic = Traffic()

    def open(self, prompt: Sequence[int], params: SamplingParams) -> Future[None]:
        self.close()
        opening = translate.write_open(uuid.uuid4().hex, self._expected, prompt, params)
        message = pb.ClientMessage(open=opening)
        if message.ByteSize() > MAX_MESSAGE_BYTES:
            raise LimitExceeded(f"a prompt of {len(prompt)} tokens: the sequence length is {self._expected.sequence_length}")
        self._stream = _Stream(self._call, self.traffic, self._address)
        return self._stream.open(message)

    def submit(self, tree: TokenTree) -> Future[Verdict]:
        return self._live.submit(tree)

    def generate(self, max_tokens: int, stop_ids: frozenset[int]) -> Iterator[int]:
        return self._live.generate(max_tokens, stop_ids) if max_tokens > 0 else iter(())

    def close(self) -> None:
        """End the session, waiting a moment for the target's confirmation. Idempotent."""
        if self._stream is not None:
            self._stream.close()

    @property
    def _live(self) -> _Stream:
        assert self._stream is not None, "open() comes first"
        return self._stream


class _Round(NamedTuple):
    number: int
    tree: TokenTree
    future: Future[Verdict]


class _Stream:
    """One session. The caller's thread sends, the reader thread resolves; at most one answer is owed at a time."""

    def __init__(self, call: _Call, traffic: Traffic, address: str) -> None:
        self._traffic, self._address = traffic, address  # bytes_up is written by the caller's thread, the rest by the reader's
        self._outbox: queue.SimpleQueue[pb.ClientMessage | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards the next four, so that no answer is owed by a stream that has ended
        self._failure: OutriderError | None = None
        self._opened: Future[None] | None = None
        self._round: _Round | None = None
        self._tokens: queue.SimpleQueue[pb.Tokens | OutriderError] | None = None
        self._length, self._rounds = 0, 0
        self._left, self._ended = False, threading.Event()
        self._call = call(iter(self._outbox.get, None))
        threading.Thread(target=self._read, name="outrider stream", daemon=True).start()

    def open(self, message: pb.ClientMessage) -> Future[None]:
        future: Future[None] = _running()
        self._length = len(message.open.prompt)
        with self._lock:
            if self._failure is not None:
                future.set_exception(self._failure)
                return future
            self._opened = future
        self._send(message)
        return future

    def submit(self, tree: TokenTree) -> Future[Verdict]:
        future: Future[Verdict] = _running()
        with self._lock:
            assert self._idle, "one at a time: the last answer is still owed"
            if self._failure is not None:
                future.set_exception(self._failure)
                return future
            self._round = _Round(self._rounds, tree, future)
        self._send(pb.ClientMessage(round=translate.write_round(self._rounds, self._length, tree)))
        return future

    def generate(self, max_tokens: int, stop_ids: frozenset[int]) -> Iterator[int]:
        tokens: queue.SimpleQueue[pb.Tokens | OutriderError] = queue.SimpleQueue()
        with self._lock:
            assert self._idle, "one at a time: the last answer is still owed"
            if self._failure is not None:
                raise self._failure
            self._tokens = tokens
        self._send(pb.ClientMessage(generate=translate.write_continue(max_tokens, stop_ids)))
        try:
            last = False
            while not last:
                answer = tokens.get()
                if isinstance(answer, OutriderError):
                    raise answer
                last = answer.last
                yield from answer.ids
        finally:
            if self._tokens is not None:
                self.close()

    def close(self) -> None:
        """Ask the target to end the session; when it is busy, or does not answer, cancel the call."""
        if self._ended.is_set():
            return
        with self._lock:
            polite = self._idle
        if polite:
            self._send(pb.ClientMessage(close=pb.Close()))
            self._outbox.put(None)
            if self._ended.wait(CLOSE_SECONDS):
                return
        self._left = True
        self._call.cancel()
        self._ended.wait(CLOSE_SECONDS)

    @property
    def _idle(self) -> bool:
        return self._opened is None and self._round is None and self._tokens is None

    def _send(self, message: pb.ClientMessage) -> None:
        self._traffic.bytes_up += message.ByteSize()
        self._outbox.put(message)

    def _read(self) -> None:
        """The reader thread: answers until the stream ends, then failure for whatever is owed."""
        failure: OutriderError = Unavailable("the session is closed")
        try:
            for message in self._call:
                _count(self._traffic, message)
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
        if kind == "opened" and self._opened is not None:
            self._resolve_open(message.opened)
        elif kind == "verdict" and self._round is not None:
            self._resolve_round(self._round, message.verdict)
        elif kind == "tokens" and self._tokens is not None:
            self._pass_on(self._tokens, message.tokens)
        else:
            raise Mismatch(f"the target at {self._address} answered what was not asked: {kind}")

    def _resolve_open(self, message: pb.Opened) -> None:
        if message.length != self._length:
            raise Mismatch(f"the target counts {message.length} committed tokens, the client {self._length}")
        with self._lock:
            future, self._opened = self._opened, None
        if future is not None:
            future.set_result(None)

    def _resolve_round(self, pending: _Round, message: pb.Verdict) -> None:
        verdict = translate.read_verdict(message, pending.number, pending.tree)
        with self._lock:
            self._round = None
            self._rounds += 1
            self._length += len(verdict.path) + 1
        pending.future.set_result(verdict)

    def _pass_on(self, tokens: queue.SimpleQueue[pb.Tokens | OutriderError], message: pb.Tokens) -> None:
        with self._lock:
            self._length += len(message.ids)
            if message.last:
                self._tokens = None
        tokens.put(message)

    def _end(self, failure: OutriderError) -> None:
        self._outbox.put(None)  # releases gRPC's sender
        with self._lock:
            self._failure = failure
            opened, round_, tokens = self._opened, self._round, self._tokens
            self._opened = self._round = self._tokens = None
        self._ended.set()
        for future in (opened, round_ and round_.future):
            if future is not None:
                future.set_exception(failure)
        if tokens is not None:
            tokens.put(failure)


def _running() -> Future[Any]:
    """A future that its holder cannot cancel."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future
