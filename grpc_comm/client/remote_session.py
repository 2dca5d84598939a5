"""A session at a remote target that survives a broken link and a target that restarts or ends.

The client has every committed token that it received, so any replica of the target can continue.
The one that holds the session resumes it; another prefills once. Orders are absolute, so repeating
them has no further effect.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from grpc_comm import messages, translate
from grpc_comm.client.call import Call, Channel
from grpc_comm.client.patience import Patience, ProgressClock
from grpc_comm.client.replicas import Replicas
from grpc_comm.client.wire_session import WireSession
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.sampling_fields import PROTOCOL_VERSION
from grpc_comm.translate import Description, SessionTerms
from inference.errors import Busy, Gone, Mismatch, OutriderError, Unavailable
from inference.order import Decode, End, Progress
from inference.proposer import Nodes
from inference.sampling import SamplingParams

FIRST_PAUSE, MAX_PAUSE = 0.2, 5.0
"""Seconds between attempts. Each pause is random, up to a limit that doubles each time."""

RESUME_SECONDS = 5.0
"""Seconds for an answer to Resume. A target that holds the session answers at once."""

REACH_SECONDS = 3.0
"""Seconds for TCP, TLS and HTTP/2 over a slow link, after gRPC's own back-off of a second."""

MIN_LEASE = 3.0
"""Seconds for which any target keeps a silent session that waits for a row. Its answer has the real
lease.
"""

MAX_BACKLOG = 16
"""Messages that may wait for the link. Further candidates are dropped."""


class RemoteSession(WireSession):
    """A TargetSession (inference.loop.decode); one text at a time.

    The target computes with `params.on_the_wire()`.
    """

    def __init__(
        self, replicas: Replicas, key: str, description: Description, patience: Patience
    ) -> None:
        """key: sessions of one key try the replicas in the same order"""
        super().__init__(description)
        self._replicas, self._key, self._patience = replicas, key, patience
        self._closed = threading.Event()
        self._params = SamplingParams()
        # where the session is, and where the call goes
        self._at = self._candidate = replicas.order(key)[0]
        self._resuming = False  # the call is a Resume
        self._terms: SessionTerms | None = None  # how the session can be resumed
        self._epoch = 0
        self._search: threading.Thread | None = None
        self._deadline: float | None = None  # when the search ends, while the target is lost
        self._progress = ProgressClock(patience)

    @property
    def lost(self) -> bool:
        """Whether the client is reconnecting to the target."""
        return self._search is not None and not self._closed.is_set()

    @property
    def address(self) -> str:
        """Address of the replica that has the session."""
        return str(self._at.address)

    @property
    def is_open(self) -> bool:
        """Whether a target has opened the session."""
        return self._terms is not None

    def open(self, prompt: Sequence[int], params: SamplingParams) -> None:
        """Begin a session. An error in the target's answer is raised by receive()."""
        self.close()
        if self._search is not None:  # the thread ends, now that the session is closed
            self._search.join()
        self._check_opening(prompt, params)
        with self._changed:
            self._received = self._copy(prompt, params)
            self._params = params
            self._terms = self._failure = self._search = self._deadline = None
            self._closed = threading.Event()
            self._progress = ProgressClock(self._patience)
            self.stream += 1
            self._at = self._replicas.order(self._key)[0]
            self._begin(self._at, open=self._opening())

    def decode(self, order: Decode) -> None:
        """Send the target an order, which replaces an earlier one."""
        with self._changed:
            self._received.set_order(order)
            self._send_order()

    def go(self, base: int) -> None:
        """With pace WAIT, request a forward pass below the token at position `base`."""
        with self._changed:
            call = self._open_call()
            if call is not None and not self.lost:
                call.send(go=pb.Go(base=base))
                self._received.requested = base + 1

    def propose(self, nodes: Nodes) -> None:
        """Send candidates. They are dropped silently while the link is down or too slow."""
        self.next_number = nodes.end
        with self._changed:
            call = self._open_call()
            if call is not None and not self.lost and call.backlog < MAX_BACKLOG:
                for message in messages.write_nodes(nodes):
                    call.send(nodes=message)

    def close(self) -> None:
        """End the session, waiting a moment for the target's confirmation. Idempotent."""
        self.abandon()
        if self._call is not None:
            self._call.close()

    def abandon(self) -> None:
        """Stop looking for the target, because the connection is about to close."""
        with self._changed:
            self._closed.set()
            self._failure = self._failure or Unavailable("the session is closed")
            self._changed.notify_all()

    def tick(self) -> None:
        """Keep a quiet session alive, and leave a target that is silent or generates no token.

        Called periodically.
        """
        call, terms = self._open_call(), self._terms
        if call is not None and not self._closed.is_set():
            call.heartbeat((MIN_LEASE if terms is None else terms.lease_seconds) / 3)
            with self._changed:
                reason = self._progress.advance(
                    call.last_message_at,
                    owes_token=self._received.owes_token or not self._is_opened,
                    opened=self._is_opened,
                )
            if reason:
                call.give_up(reason)

    # Handling messages, on the reader's thread and with the lock held.

    def _handle_opened(self, call: Call, terms: SessionTerms) -> None:
        length, resumed = self._received.length, self._resuming
        if terms.length < length or (terms.length > length and not resumed):
            raise Mismatch(f"counts {terms.length} tokens at the start instead of {length}")
        if not self._is_opened:
            self._progress.note_opened()
        super()._handle_opened(call, terms)
        if self._terms is not None:
            self.traffic.resumes += resumed
            self.traffic.reopenings += not resumed
        if not resumed:
            self._received.begin_session()
        self.stream += self._search is not None
        self._terms, self._at, self._search, self._is_opened = terms, self._candidate, None, True

    def _handle_tokens(self, call: Call, progress: Progress) -> None:
        if not self._is_opened:
            if progress.tokens:
                raise Mismatch("the target sent tokens before the session was open")
            if not self._progress.stalled:
                self._deadline = None
            return self._received.note_alive()
        length = self._received.length
        owed = self._received.owes_token
        self._progress.evicted = progress.end is End.EVICTED
        super()._handle_tokens(call, progress)
        came = self._received.length > length
        if came:
            self._progress.restart()
        if came or not owed:
            self._deadline = None
        self._acknowledge()
        if self._received.end is End.DRAINED and self._patience.seconds > 0:
            self._received.end = End.NOT  # another target continues
            self._start_search(self._leaving_error(call), call)

    def on_end(self, call: Call, failure: OutriderError) -> None:
        """Handle the end of a call, on the reader's thread."""
        with self._changed:
            if call is self._call and self._search is None:  # not an attempt to reconnect
                self._handle_end(call, failure)
            self._changed.notify_all()

    def _handle_end(self, call: Call, failure: OutriderError) -> None:
        """Look for the target, unless the text has ended."""
        patient = self._patience.seconds > 0 and not self._closed.is_set()
        if patient and isinstance(failure, Unavailable) and self._received.end is End.NOT:
            self._start_search(self._leaving_error(call) if self._leaving else failure, call)
        else:
            self._failure = self._failure or failure

    def _leaving_error(self, call: Call) -> Unavailable:
        return Unavailable(f"the target at {call.address} is leaving: {self._leaving}")

    # Getting the session back, on a thread of its own.

    def _start_search(self, reason: OutriderError, call: Call) -> None:
        away = call.silent or isinstance(reason, Busy)
        leaving = bool(self._leaving) or (away and self._replicas.several)
        if self._deadline is None:
            soonest = time.monotonic() + REACH_SECONDS
            self._deadline = max(call.last_message_at + self._patience.seconds, soonest)
        elif self._deadline < time.monotonic():
            self._failure = self._failure or reason
            return
        self._call, deadline = None, self._deadline

        def reconnect() -> None:
            self._patience.notice(f"{reason}; reconnecting")
            try:
                channel = self._find_again(reason, leaving, deadline)
            except OutriderError as error:
                with self._changed:
                    self._failure, self._search = self._failure or error, None
                    self._changed.notify_all()
            else:
                self._patience.notice(f"reconnected to {channel.address}")
            call.close()

        self._search = threading.Thread(target=reconnect, name="outrider reconnect", daemon=True)
        self._search.start()

    def _find_again(self, reason: OutriderError, leaving: bool, deadline: float) -> Channel:
        """Get the session back, here or at its next replica; return where it is.

        leaving: the present replica will not continue the session

        Raises the last failure when patience ends.
        """
        pause, reached = FIRST_PAUSE, not leaving  # reached: it was connected a moment ago
        while True:
            for channel in self._replicas.round(self._key, self._at, leaving=leaving):
                try:
                    if not reached:
                        self._replicas.reach(channel, REACH_SECONDS, self._closed)
                    resume = not leaving and channel is self._at
                    self._try_replica(channel, resume=resume, checked=not reached)
                    return channel
                except Unavailable as error:
                    reason, reached = error, False
                if time.monotonic() > deadline or self._closed.is_set():
                    raise reason
            wait = (
                reason.retry_after * random.uniform(1, 2)  # noqa: S311
                if isinstance(reason, Busy)
                else random.uniform(0, pause)  # noqa: S311
            )
            pause = min(2 * pause, MAX_PAUSE)
            if time.monotonic() + wait > deadline or self._closed.wait(wait):
                raise reason

    def _try_replica(self, channel: Channel, *, resume: bool, checked: bool) -> None:
        """Try a replica once: Resume where the session may still exist, Open where it does not.

        checked: it has just sent its description; otherwise that is fetched before Open
        """
        terms = self._terms
        if resume and terms is not None:
            self._epoch += 1
            resume_request = pb.Resume(
                protocol_version=PROTOCOL_VERSION,
                session_id=terms.session_id,
                resume_key=terms.resume_key,
                epoch=self._epoch,
                length=self._received.length,
            )
            try:
                return self._try(channel, RESUME_SECONDS, resume=resume_request)
            except Gone:
                pass
        if not checked:  # another target may have taken its place
            self._replicas.reach(channel, REACH_SECONDS, self._closed)
        self._try(channel, None, open=self._opening())

    def _try(self, channel: Channel, seconds: float | None, **first: Any) -> None:
        """Wait until the session is open there, at most so long; tick() ends a silent call."""
        with self._changed:
            call = self._begin(channel, **first)
            self._changed.wait_for(
                lambda: self._is_opened or self._closed.is_set() or call.failure, seconds
            )
            if self._is_opened:
                return
            failure = call.failure or Unavailable(f"the target at {call.address} did not answer")
        call.cancel()
        raise failure

    def _begin(self, channel: Channel, **first: Any) -> Call:
        """Start a stream to a target, with its first message and the current order."""
        call = self._call = Call(channel, self, self.traffic)
        self._candidate, self._resuming, self._is_opened = channel, "resume" in first, False
        self._leaving, self._acknowledged = "", self._received.length
        call.send(**first)
        self._send_order()
        call.begin()
        return call

    def _opening(self) -> pb.Open:
        """Return the message that opens a session with all tokens of the text."""
        tokens, made = self._received.tokens, self._params.made + self._received.made
        params = replace(self._params, made=made, prompt_logprobs=self._received.awaits_prompt)
        return translate.write_open(uuid.uuid4().hex, self._description, tokens, params)

    def _send_order(self) -> None:
        """Send the current order."""
        call, order = self._open_call(), self._received.order
        if call is not None and order is not None:
            call.send(decode=messages.write_decode(order))
