"""A stream to a target, and the receiving half of a client's session over it.

Sending never blocks. A reader thread passes received messages to the session.
"""

from __future__ import annotations

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import grpc

from grpc_comm import statuses, translate
from grpc_comm.client.channel import Channel
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.translate import Description, SessionTerms
from inference.errors import InvalidRequest, Mismatch, OutriderError, Unavailable
from inference.order import MIN_CREDIT, Progress, TokenLogProb
from inference.proposer import FRAMING_BYTES, MAX_CANDIDATES
from inference.sampling import SamplingParams
from inference.text_log import TextCopy, Traffic

CLOSE_SECONDS = 2.0


class Call:
    """A bidirectional stream.

    failure: why the stream ended; None while it is open
    last_message_at: time.monotonic() of the target's latest message
    silent: whether the stream ended because the target sent no messages or no tokens
    """

    def __init__(self, channel: Channel, session: WireSession, traffic: Traffic) -> None:
        self.address, self.last_message_at = str(channel.address), time.monotonic()
        self.failure: OutriderError | None = None
        self.silent = False
        self._session, self._traffic = session, traffic
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
                self._session.on_message(self, message)
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
            self._session.on_end(self, self.failure)


ACKNOWLEDGED_AT_ONCE = MIN_CREDIT // 4
"""Number of tokens acknowledged together: small enough that a distant target does not run out of
credit.
"""


class WireSession(ABC):
    """A session whose tokens arrive on a call, on the call's reader thread.

    stream: id of the stream of proposals; the target forgets proposals of earlier streams
    candidates: maximum candidates that the target stores for this session
    next_number: number of the next proposed node. Numbers are never reused, also in new streams, so
        an unknown parent is never mistaken for another node
    """

    def __init__(self, description: Description) -> None:
        self.traffic, self.stream, self.candidates = Traffic(), 0, MAX_CANDIDATES
        self._description = description
        self._changed = threading.Condition()  # guards all state; acquired before a call's lock
        self._call: Call | None = None
        self._failure: OutriderError | None = None
        self._received = self._copy((), SamplingParams())
        self._is_opened, self._acknowledged = False, 0  # whether Opened arrived; the last Ack
        self._leaving = ""  # the reason in the target's GoAway
        self.next_number, self._tree_nodes = 0, description.max_tree_nodes

    @property
    def prompt_logprobs(self) -> tuple[TokenLogProb, ...]:
        """Log-probabilities of the prompt's tokens except the first, if requested and received."""
        return self._received.prompt_logprobs

    @property
    def room(self) -> int:
        """Number of candidates of this session that currently fit into a forward pass."""
        return min(self._received.latest.room or self._tree_nodes - 1, self.candidates)

    def receive(self, timeout: float) -> Progress | None:
        """Return the progress received since the last call; None after `timeout` seconds.

        Progress without tokens is a heartbeat. Raises the error that ended the session.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                progress = self._received.read()
                if progress is not None:
                    self._acknowledge()
                    return progress
                if self._failure is not None:
                    raise self._failure
                seconds_left = deadline - time.monotonic()
                if seconds_left <= 0:
                    return None
                self._changed.wait(seconds_left)

    def on_message(self, call: Call, message: pb.ServerMessage) -> None:
        """Handle a message, on the reader thread. Ignores messages of an abandoned call.

        Raises Mismatch if it violates the protocol, which ends the call.
        """
        with self._changed:
            if call is not self._call:
                return
            answer = translate.read_answer(message)
            if isinstance(answer, Progress):
                self._handle_tokens(call, answer)
            elif isinstance(answer, SessionTerms):
                self._handle_opened(call, answer)
            else:
                self._leaving = answer
            self._changed.notify_all()

    @abstractmethod
    def on_end(self, call: Call, failure: OutriderError) -> None:
        """Handle the end of a call, on the reader thread."""

    def _handle_opened(self, call: Call, terms: SessionTerms) -> None:
        self._tree_nodes = terms.tree_nodes or self._tree_nodes
        self.candidates = terms.candidates
        self._received.take_opened(terms.opened)

    def _handle_tokens(self, call: Call, progress: Progress) -> None:
        """Store received tokens; without tokens, the message is a heartbeat."""
        self._received.take(progress)

    def _acknowledge(self) -> None:
        """Acknowledge received tokens, unless the caller of receive() is far behind."""
        call, length, order = self._open_call(), self._received.length, self._received.order
        at_once = ACKNOWLEDGED_AT_ONCE
        if order is not None and order.credit:
            at_once = max(1, min(at_once, order.credit // 4))
        if call is None or not self._is_opened or self._received.is_behind:
            return
        if length - self._acknowledged >= at_once:
            self._acknowledged = length
            call.send(ack=pb.Ack(length=length))

    def _copy(self, prompt: Sequence[int], params: SamplingParams) -> TextCopy:
        return TextCopy(prompt, params, self._description.vocabulary, self.traffic)

    def _open_call(self) -> Call | None:
        call = self._call
        return call if call is not None and call.failure is None else None

    def _check_opening(self, prompt: Sequence[int], params: SamplingParams) -> None:
        """Raise InvalidRequest, before anything is sent, if the prompt is too long or the target
        does not support a sampling parameter.
        """
        if params.needs_rule and not self._description.rules:
            raise InvalidRequest(
                "the target supports no grammar, penalties or biases, and reports no "
                "log-probabilities: it needs this version of Outrider, and compiled graphs need "
                "`outrider compile --masks`"
            )
        translate.check_prompt(len(prompt), params, self._description.sequence_length)
