"""What every session over a wire has: tokens arrive unasked, and candidates are sent at any time.
A second device at a session has no more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from grpc_comm import messages, translate
from grpc_comm.client.call import Call, Channel, Ticket
from grpc_comm.client.received import Received
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.translate import Description, plain
from inference.errors import LimitExceeded, Mismatch, OutriderError
from inference.order import Progress
from inference.proposer import MOST_CANDIDATES, Nodes
from inference.stats import Traffic

MOST_BACKLOG = 16
"""Messages that may wait for the link. Further candidates are dropped."""


LONGEST_SILENCE = 30.0
"""Seconds of silence after which a target counts as lost. A live one speaks every second."""

HEARTBEAT_SECONDS = 3.0
"""Seconds between signs of life of a second device."""


class ListeningSession:
    """A session whose tokens arrive on a call, on the call's reader thread.

    stream: id of the stream of proposals; a new stream knows nothing of earlier proposals
    candidates: the most that the target keeps for this session
    """

    def __init__(self, description: Description) -> None:
        self.traffic, self.stream, self.candidates = Traffic(), 0, MOST_CANDIDATES
        self._description = description
        self._changed = threading.Condition()  # guards everything; a call's own lock lies within
        self._call: Call | None = None
        self._failure: OutriderError | None = None
        self._received = Received((), description.vocabulary, self.traffic)
        self._leaving = ""  # why the target goes away, in its own words
        self._numbers, self._tree_nodes = 0, description.max_tree_nodes

    @property
    def lost(self) -> bool:
        """Whether the target is being looked for."""
        return False

    @property
    def room(self) -> int:
        """Candidates that a forward has room for at present, for this session."""
        return min(self._received.session.room or self._tree_nodes - 1, self.candidates)

    def next_number(self) -> int:
        """Return a number for a proposal. Numbers are never reused, over all streams.

        So a parent that a new stream does not know is never mistaken for another node.
        """
        self._numbers += 1
        return self._numbers - 1

    def propose(self, nodes: Nodes) -> None:
        """Send candidates. They are dropped silently while the link is down or too slow."""
        with self._changed:
            call = self._open_call()
            if call is not None and not self.lost and call.backlog < MOST_BACKLOG:
                for message in messages.write_nodes(nodes):
                    call.send(nodes=message)

    def receive(self, timeout: float) -> Progress | None:
        """Return what has come since the last call; None after `timeout` seconds.

        Progress without tokens is a sign of life. Raises what ended the session.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                progress = self._received.read()
                if progress is not None:
                    self._was_read()
                    return progress
                if self._failure is not None:
                    raise self._failure
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(left)

    def heard(self, call: Call, message: pb.ServerMessage) -> None:
        """Take a message, on the reader's thread. Messages of an abandoned call are ignored."""
        with self._changed:
            if call is not self._call:
                return
            kind = message.WhichOneof("kind")
            if kind == "tokens":
                self._take(call, message.tokens)
            elif kind == "opened":
                self._opened(call, message.opened)
            elif kind == "go_away":
                self._leaving = plain(message.go_away.reason)
            else:
                raise Mismatch("said what this version does not know")
            self._changed.notify_all()

    def ended(self, call: Call, failure: OutriderError) -> None:
        """Take note that the call has ended, on the reader's thread."""
        with self._changed:
            if call is self._call:
                self._lost(call, failure)
            self._changed.notify_all()

    def _lost(self, call: Call, failure: OutriderError) -> None:
        self._failure = failure

    def _opened(self, call: Call, opened: pb.Opened) -> None:
        """Take note that the target holds the session."""
        self._tree_nodes = opened.tree_nodes or self._tree_nodes
        self.candidates = min(opened.candidates or MOST_CANDIDATES, MOST_CANDIDATES)
        traffic = self.traffic
        traffic.queue_seconds += max(opened.queue_seconds, 0.0)
        traffic.prefill_seconds += max(opened.prefill_seconds, 0.0)
        traffic.reused_tokens += opened.reused_tokens

    def _take(self, call: Call, message: pb.Tokens) -> None:
        """Take tokens, or the target's sign of life."""
        self._received.take(messages.read_tokens(message))

    def _was_read(self) -> None:
        """Called when nothing is unread any more."""

    def _open_call(self) -> Call | None:
        """Return the call while it is alive, else None."""
        call = self._call
        return call if call is not None and call.failure is None else None

    def _check_prompt(self, prompt: Sequence[int]) -> None:
        """Raise LimitExceeded for too long a prompt, before it is sent."""
        length = self._description.sequence_length
        if len(prompt) >= length:
            raise LimitExceeded(
                f"a prompt of {len(prompt)} tokens leaves no room: the sequence length is "
                f"{length}, prompt and output together"
            )


class AttachedSession(ListeningSession):
    """A session that another connection owns.

    It ends with the session, when its link breaks, or when the owner resumes the session; receive()
    then raises. It does not look for the target again: the owner has another ticket then.
    """

    def __init__(self, channel: Channel, description: Description, ticket: Ticket) -> None:
        super().__init__(description)
        self._channel, self._ticket = channel, ticket

    def open(self, tokens: Sequence[int]) -> None:
        """Listen from here on.

        tokens: the prompt and what was committed so far
        """
        self.close()
        self._check_prompt(tokens)
        with self._changed:
            self._received = Received(tokens, self._description.vocabulary, self.traffic)
            self._received.ask(self._description.sequence_length, frozenset())
            self._failure, self.stream = None, self.stream + 1
            call = self._call = Call(self._channel, self, self.traffic)
            call.send(attach=translate.write_attach(*self._ticket, len(tokens)))
            call.begin()

    def close(self) -> None:
        """Leave the session, which goes on. Idempotent."""
        if self._call is not None:
            self._call.close()

    def abandon(self) -> None:
        """Do nothing: this session never looks for a lost target, so there is no search to stop."""

    def tick(self) -> None:
        """Send a sign of life if due, and give up on a silent target. Called periodically."""
        call = self._open_call()
        if call is not None:
            call.heartbeat(HEARTBEAT_SECONDS)
            call.give_up_after(LONGEST_SILENCE)
