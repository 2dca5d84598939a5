"""One stream to a target as the client sees it, the way to targets, and the ticket that lets a
second device into a session.

Senders wait for nobody. A reader thread hands on what comes.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import grpc

from grpc_comm import translate
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.translate import Description
from inference.errors import Mismatch, OutriderError, Unavailable
from inference.stats import FRAMING_BYTES, Traffic

CLOSE_SECONDS = 2.0

Start = Callable[[Iterator[pb.ClientMessage]], Any]
"""Starts the gRPC call, given the messages that will be sent."""


class Line(Protocol):
    """The way to `targets` targets that serve one model. Index i means target i modulo
    `targets`.
    """

    @property
    def description(self) -> Description: ...

    @property
    def targets(self) -> int: ...

    def address(self, index: int) -> str: ...

    def start(self, index: int) -> Start:
        """Return the function that starts a stream to this target."""
        ...

    def reach(self, index: int, seconds: float, given_up: threading.Event) -> None:
        """Wait until the target answers.

        Raises Unavailable after so many seconds, or when the event `given_up` is set.
        """
        ...


class Ticket(NamedTuple):
    """What a second device needs to append to a session, besides its text.

    It is a secret, and void once the session was resumed.
    """

    session_id: str
    append_key: bytes


class Listener(Protocol):
    """Receives a call's messages, on the call's reader thread."""

    def heard(self, call: Call, message: pb.ServerMessage) -> None:
        """Take a message. Raising Mismatch, for what a target must not say, ends the call."""
        ...

    def ended(self, call: Call, failure: OutriderError) -> None: ...


class Call:
    """A bidirectional stream.

    failure: why the stream ended, None while it is alive
    heard_at: time.monotonic() of the target's latest message
    silent: whether the stream ended because the target said nothing
    """

    def __init__(self, start: Start, listener: Listener, traffic: Traffic, address: str) -> None:
        self.address, self.heard_at = address, time.monotonic()
        self.failure: OutriderError | None = None
        self.silent = False
        self._listener, self._traffic = listener, traffic
        self._outbox: queue.SimpleQueue[pb.ClientMessage | None] = queue.SimpleQueue()
        self._sending = threading.Lock()  # guards the counts of what is sent
        self._left: OutriderError | None = None  # why this side ended it
        self._ended, self._last_sent = threading.Event(), time.monotonic()
        self._call = start(iter(self._outbox.get, None))
        self._reader = threading.Thread(target=self._read, name="outrider stream", daemon=True)

    def begin(self) -> None:
        """Start the reader thread."""
        self._reader.start()

    @property
    def backlog(self) -> int:
        """Messages that gRPC has not taken yet, because the link is too slow at present."""
        return self._outbox.qsize()

    def send(self, **kind: Any) -> None:
        """Send a message of one kind. Does nothing once the call has ended."""
        message = pb.ClientMessage(**kind)
        with self._sending:
            self._last_sent = time.monotonic()
            self._traffic.messages_up += 1
            self._traffic.bytes_up += message.ByteSize() + FRAMING_BYTES
        self._outbox.put(message)

    def heartbeat(self, seconds: float) -> None:
        """Send a sign of life if nothing was sent for so many seconds."""
        if self.failure is None and time.monotonic() - self._last_sent >= seconds:
            self.send(heartbeat=pb.Heartbeat())

    def close(self) -> None:
        """Ask the target to end the session. If it does not answer soon, cancel the call."""
        if not self._ended.is_set():
            self._left = self._left or Unavailable("the session is closed")
            self.send(close=pb.Close())
            self._outbox.put(None)
            if not self._ended.wait(CLOSE_SECONDS):
                return self.cancel()
        self._settle()

    def cancel(self) -> None:
        """End the call without asking. The target may hold the session for its lease."""
        self._left = self._left or Unavailable("the session is closed")
        self._call.cancel()
        self._settle()

    def give_up_after(self, seconds: float) -> None:
        """End the call if the target has said nothing for so many seconds."""
        if self.failure is None and time.monotonic() - self.heard_at > seconds:
            words = f"the target at {self.address} has said nothing for {seconds:.0f} s"
            self.silent, self._left = True, self._left or Unavailable(words)
            self.cancel()

    def _settle(self) -> None:
        """Wait for the reader to record how the call ended."""
        if self._reader.ident is not None and threading.current_thread() is not self._reader:
            self._reader.join(CLOSE_SECONDS)

    def _read(self) -> None:
        """Hand on messages until the stream ends, then record why. Runs on the reader thread."""
        failure: OutriderError = Unavailable(f"the target at {self.address} ended the session")
        try:
            for message in self._call:
                self.heard_at = time.monotonic()
                self._traffic.messages_down += 1
                self._traffic.bytes_down += message.ByteSize() + FRAMING_BYTES
                self._listener.heard(self, message)
        except grpc.RpcError as error:
            failure = translate.status_error(error, f"the target at {self.address} went away")
            failure.__cause__ = error
        except Mismatch as error:
            failure = Mismatch(f"the target at {self.address} {error}")
            self._left = failure
            self._call.cancel()
        finally:
            self.failure = self._left or failure
            self._outbox.put(None)  # releases gRPC's sender
            self._ended.set()
            self._listener.ended(self, self.failure)
