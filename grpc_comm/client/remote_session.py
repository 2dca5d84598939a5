"""A session at a remote target that survives a broken link and a target that restarts or ends.

The client stores every committed token that it received, so any replica of the target can continue.
The replica that has the session resumes it; another replica prefills once. Decode orders contain
absolute bounds, so repeating them has no further effect.
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
from grpc_comm.client.call import Call, WireSession
from grpc_comm.client.channel import Channel
from grpc_comm.client.patience import Patience, ProgressClock
from grpc_comm.client.replicas import Replicas
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.translate import PROTOCOL_VERSION, Description, SessionTerms
from inference.errors import Busy, Gone, Mismatch, OutriderError, Unavailable
from inference.order import Decode, End, Progress
from inference.proposer import Nodes
from inference.sampling import SamplingParams

FIRST_PAUSE, MAX_PAUSE = 0.2, 5.0
"""Seconds between attempts. Each pause is random, up to a limit that doubles with each attempt."""

RESUME_SECONDS = 5.0
"""Seconds to wait for an answer to Resume. A target that has the session answers at once."""

REACH_SECONDS = 3.0
"""Seconds to connect by TCP, TLS and HTTP/2 over a slow link, after gRPC's back-off of a second."""

MIN_LEASE = 3.0
"""Seconds for which every target keeps a silent session that waits for a row. Opened contains the
actual lease.
"""

MAX_BACKLOG = 16
"""Maximum messages that wait to be sent. Further candidates are dropped."""


class RemoteSession(WireSession):
    """A TargetSession (inference.loop.decode); one request at a time.

    The target computes with `params.on_the_wire()`.
    """

    def __init__(
        self, replicas: Replicas, key: str, description: Description, patience: Patience
    ) -> None:
        """key: sessions with the same key try the replicas in the same order"""
        super().__init__(description)
        self._replicas, self._key, self._patience = replicas, key, patience
        self._closed = threading.Event()
        self._params = SamplingParams()
        # the replica that has the session, and the replica of the current call
        self._at = self._candidate = replicas.order(key)[0]
        self._resuming = False  # whether the call began with Resume
        self._terms: SessionTerms | None = None  # needed to resume the session
        self._epoch = 0
        self._search: threading.Thread | None = None
        self._deadline: float | None = None  # end of the search for a lost target
        self._progress = ProgressClock(patience)

    @property
    def lost(self) -> bool:
        """Whether the client is reconnecting to the target."""
        return self._search is not None and not self._closed.is_set()

    @property
    def address(self) -> str:
        """The address of the replica that has the session."""
        return str(self._at.address)

    @property
    def is_open(self) -> bool:
        """Whether a target has opened the session."""
        return self._terms is not None

    def open(self, prompt: Sequence[int], params: SamplingParams) -> None:
        """Open a session. If the target refuses it, receive() raises the error."""
        self.close()
        if self._search is not None:  # the thread ends because the session is closed
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
        """Send a Decode order to the target, which replaces any earlier order."""
        with self._changed:
            self._received.set_order(order)
            self._send_order()

    def go(self, base: int) -> None:
        """Request a forward pass that continues the token at position `base`; for pace WAIT."""
        with self._changed:
            call = self._open_call()
            if call is not None and not self.lost:
                call.send(go=pb.Go(base=base))
                self._received.requested = base + 1

    def propose(self, nodes: Nodes) -> None:
        """Send candidates. Drops them silently while the link is down or too slow."""
        self.next_number = nodes.end
        with self._changed:
            call = self._open_call()
            if call is not None and not self.lost and call.backlog < MAX_BACKLOG:
                for message in messages.write_nodes(nodes):
                    call.send(nodes=message)

    def close(self) -> None:
        """End the session, and wait briefly for the target's confirmation. Idempotent."""
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
        """Send a heartbeat if due, and leave a target that is silent or generates no token.

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

    # The following methods handle messages, on the reader thread and with the lock held.

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
        is_longer = self._received.length > length
        if is_longer:
            self._progress.restart()
        if is_longer or not owed:
            self._deadline = None
        self._acknowledge()
        if self._received.end is End.DRAINED and self._patience.seconds > 0:
            self._received.end = End.NOT  # another target continues
            self._start_search(self._leaving_error(call), call)

    def on_end(self, call: Call, failure: OutriderError) -> None:
        with self._changed:
            if call is self._call and self._search is None:  # not an attempt to reconnect
                self._handle_end(call, failure)
            self._changed.notify_all()

    def _handle_end(self, call: Call, failure: OutriderError) -> None:
        """Search for the target, unless the request has ended."""
        patient = self._patience.seconds > 0 and not self._closed.is_set()
        if patient and isinstance(failure, Unavailable) and self._received.end is End.NOT:
            self._start_search(self._leaving_error(call) if self._leaving else failure, call)
        else:
            self._failure = self._failure or failure

    def _leaving_error(self, call: Call) -> Unavailable:
        return Unavailable(f"the target at {call.address} is leaving: {self._leaving}")

    # The following methods restore the session, on a separate thread.

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
        """Restore the session at its replica or at the next one; return the replica's channel.

        leaving: whether the current replica will not continue the session

        Raises the last failure once the deadline has passed.
        """
        pause, reached = FIRST_PAUSE, not leaving  # reached: the replica was just connected
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
        """Try a replica once: Resume if it may still have the session, otherwise Open.

        checked: whether it has just sent its description; if not, this is fetched before Open
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
        if not checked:  # another target may listen at the address by now
            self._replicas.reach(channel, REACH_SECONDS, self._closed)
        self._try(channel, None, open=self._opening())

    def _try(self, channel: Channel, seconds: float | None, **first: Any) -> None:
        """Wait up to `seconds` until a replica has opened the session. tick() ends silent calls."""
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
        """Start a stream to a target with a first message and the current Decode order."""
        call = self._call = Call(channel, self, self.traffic)
        self._candidate, self._resuming, self._is_opened = channel, "resume" in first, False
        self._leaving, self._acknowledged = "", self._received.length
        call.send(**first)
        self._send_order()
        call.begin()
        return call

    def _opening(self) -> pb.Open:
        """Return the message that opens a session with all tokens of the request as its prompt."""
        tokens, emitted = self._received.tokens, self._params.made + self._received.made
        params = replace(self._params, made=emitted, prompt_logprobs=self._received.awaits_prompt)
        return translate.write_open(uuid.uuid4().hex, self._description, tokens, params)

    def _send_order(self) -> None:
        call, order = self._open_call(), self._received.order
        if call is not None and order is not None:
            call.send(decode=messages.write_decode(order))
