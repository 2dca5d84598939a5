"""The client's channel to a target, and a stream over that channel.

Sending never blocks. A reader thread passes received messages to a listener.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from grpc_comm import statuses, translate
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.proto import verifier_pb2_grpc
from grpc_comm.security import SecurityOptions, channel_security
from grpc_comm.translate import Description
from grpc_comm.transport import Address, channel_options
from grpc_comm.unanswered import WrongSecurity, advice
from inference.errors import Mismatch, OutriderError, Unavailable
from inference.proposer import FRAMING_BYTES
from inference.text_log import Traffic

CLOSE_SECONDS = 2.0
REACH_POLL_SECONDS = 0.02


class Channel:
    """A gRPC channel to one target. Closed channels raise Unavailable.

    name: host that the target's certificate must name; empty: the host of the address
    """

    def __init__(self, address: Address, security: SecurityOptions, name: str = "") -> None:
        self.address, self._security = address, security
        credentials, self._metadata = channel_security(security, address)
        options = channel_options(address, name)
        if credentials is None:
            self._channel = grpc.insecure_channel(str(address), options)
        else:
            self._channel = grpc.secure_channel(str(address), credentials, options)
        self._stub = verifier_pb2_grpc.TargetStub(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)

    def describe(self, model: str, timeout: float) -> Description:
        return translate.read_description(self._ask(timeout, model))

    def tokenizer_settings(self, model: str, timeout: float) -> bytes:
        """Fetch a model's tokenizer settings, unchecked."""
        return self._ask(timeout, model, tokenizer_settings=True).tokenizer_settings

    def list_models(self, timeout: float) -> list[str]:
        return [translate.plain(name) for name in self._ask(timeout).models]

    def probe(self, timeout: float) -> float:
        """Return the seconds of a round trip for which the target does no work."""
        start = time.perf_counter()
        self._ask(timeout)
        return time.perf_counter() - start

    def _ask(
        self, timeout: float, model: str = "", *, tokenizer_settings: bool = False
    ) -> pb.Description:
        request = pb.DescribeRequest(model=model, tokenizer_settings=tokenizer_settings)
        try:
            with self._open():
                message: pb.Description = self._stub.Describe(
                    request, timeout=timeout, metadata=self._metadata
                )
        except grpc.RpcError as error:
            problem = f"{model} is not available" if model else "no Outrider target answers"
            raise self._failure(error, f"{problem} at {self.address}") from error
        return message

    @contextmanager
    def _open(self) -> Iterator[None]:
        """Raise Unavailable if the channel is closed, which gRPC reports as a ValueError."""
        try:
            yield
        except ValueError as error:
            raise Unavailable(f"the connection to {self.address} is closed") from error

    def _failure(self, error: grpc.RpcError, meaning: str) -> OutriderError:
        """Return Outrider's exception for a failed RPC, with a remedy if one is known."""
        failure = statuses.status_error(error, meaning)
        if not isinstance(failure, Unavailable):
            return failure
        remedy = advice(self.address, self._security)
        return WrongSecurity(f"{meaning}: {remedy}") if remedy else failure

    def check_health(self, timeout: float) -> None:
        """Raise Unavailable unless the target reports within `timeout` seconds that it is serving.

        An ingress without a health service is assumed to be serving.
        """
        try:
            with self._open():
                answer = self._health.Check(
                    health_pb2.HealthCheckRequest(), timeout=timeout, metadata=self._metadata
                )
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return
            raise statuses.status_error(error, f"no answer from {self.address}") from error
        if answer.status != health_pb2.HealthCheckResponse.SERVING:
            raise Unavailable(f"the target at {self.address} accepts no sessions at present")

    def reach(self, model: str, seconds: float, given_up: threading.Event) -> Description:
        """Wait up to `seconds` for the channel to connect; return the target's description. Raises
        Unavailable.

        The RPC uses wait_for_ready: other RPCs fail with gRPC's last connection error while the
        channel reconnects.
        """
        request = pb.DescribeRequest(model=model)
        with self._open():
            call = self._stub.Describe.future(
                request, timeout=seconds, metadata=self._metadata, wait_for_ready=True
            )
        while not call.done():
            if given_up.wait(REACH_POLL_SECONDS):
                call.cancel()
        if call.code() is not grpc.StatusCode.OK:
            raise statuses.status_error(call, f"no Outrider target answers at {self.address}")
        return translate.read_description(call.result())

    def session(self, messages: Iterator[pb.ClientMessage]) -> Any:
        with self._open():
            return self._stub.Session(messages, metadata=self._metadata)

    def close(self) -> None:
        self._channel.close()


class CallListener(Protocol):
    """Receives the messages of a call, on the call's reader thread."""

    def on_message(self, call: Call, message: pb.ServerMessage) -> None:
        """Handle a message. Raises Mismatch if it violates the protocol, which ends the call."""
        ...

    def on_end(self, call: Call, failure: OutriderError) -> None: ...


class Call:
    """A bidirectional stream.

    failure: why the stream ended; None while it is open
    last_message_at: time.monotonic() of the target's latest message
    silent: whether the stream ended because the target sent no messages or no tokens
    """

    def __init__(self, channel: Channel, listener: CallListener, traffic: Traffic) -> None:
        self.address, self.last_message_at = str(channel.address), time.monotonic()
        self.failure: OutriderError | None = None
        self.silent = False
        self._listener, self._traffic = listener, traffic
        self._outbox: queue.SimpleQueue[pb.ClientMessage | None] = queue.SimpleQueue()
        self._sending = threading.Lock()  # guards the counts of sent messages
        self._left: OutriderError | None = None  # why this side ended the stream
        self._ended, self._last_sent = threading.Event(), time.monotonic()
        self._call = channel.session(iter(self._outbox.get, None))
        self._reader = threading.Thread(target=self._read, name="outrider stream", daemon=True)

    def begin(self) -> None:
        """Start the reader thread."""
        self._reader.start()

    @property
    def backlog(self) -> int:
        """Number of messages that gRPC has not sent yet, because the link is too slow."""
        return self._outbox.qsize()

    def send(self, **kind: Any) -> None:
        """Send a message with the given field of ClientMessage. No effect on an ended call."""
        message = pb.ClientMessage(**kind)
        with self._sending:
            self._last_sent = time.monotonic()
            self._traffic.messages_up += 1
            self._traffic.bytes_up += message.ByteSize() + FRAMING_BYTES
        self._outbox.put(message)

    def heartbeat(self, seconds: float) -> None:
        """Send a heartbeat if nothing was sent for this many seconds."""
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
        """End the call at once. The target may keep the session for its lease."""
        self._left = self._left or Unavailable("the session is closed")
        self._call.cancel()
        self._settle()

    def give_up(self, words: str) -> None:
        """End the call. words: the target's fault, which follows its address in the error"""
        failure = Unavailable(f"the target at {self.address} {words}")
        self.silent, self._left = True, self._left or failure
        self.cancel()

    def _settle(self) -> None:
        """Wait for the reader to record how the call ended."""
        if self._reader.ident is not None and threading.current_thread() is not self._reader:
            self._reader.join(CLOSE_SECONDS)

    def _read(self) -> None:
        """Pass on messages until the stream ends, then record why. Runs on the reader thread."""
        failure: OutriderError = Unavailable(f"the target at {self.address} ended the session")
        try:
            for message in self._call:
                if not message.HasField("go_away"):  # a draining target also sends other messages
                    self.last_message_at = time.monotonic()
                self._traffic.messages_down += 1
                self._traffic.bytes_down += message.ByteSize() + FRAMING_BYTES
                self._listener.on_message(self, message)
        except grpc.RpcError as error:
            failure = statuses.status_error(error, f"the target at {self.address} went away")
            failure.__cause__ = error
        except Mismatch as error:
            failure = Mismatch(f"the target at {self.address} {error}")
            self._left = failure
            self._call.cancel()
        finally:
            self.failure = self._left or failure
            self._outbox.put(None)  # ends gRPC's sending thread
            self._ended.set()
            self._listener.on_end(self, self.failure)
