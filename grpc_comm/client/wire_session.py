"""The part that every session over a wire has: tokens come whether or not anybody asks for them,
and candidates go up whenever there are some.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from grpc_comm import messages
from grpc_comm.client.call import Call
from grpc_comm.client.received import Received
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.translate import Description, plain
from inference.candidates import MOST_CANDIDATES, Nodes
from inference.errors import LimitExceeded, Mismatch, OutriderError
from inference.order import Progress
from inference.stats import Traffic

MOST_BACKLOG = 16
"""Messages that may wait for the link; further candidates are dropped."""


class ListeningSession:
    """A session whose tokens come on a call, on its reader's thread.

    stream: changes when the target knows nothing of earlier proposals any more.  candidates: that
    the target keeps.
    """

    def __init__(self, description: Description) -> None:
        self.traffic, self.stream, self.candidates = Traffic(), 0, MOST_CANDIDATES
        self._description = description
        self._changed = threading.Condition()  # guards everything; a call's own lock lies within
        self._call: Call | None = None
        self._failure: OutriderError | None = None
        self._received = Received((), description.vocabulary, self.traffic)
        self._leaving = ""  # why the target goes away, as it says
        self._numbers, self._tree_nodes = 0, description.max_tree_nodes

    @property
    def lost(self) -> bool:
        """The target is being looked for."""
        return False

    @property
    def room(self) -> int:
        """Candidates that a forward has for this session at present."""
        return min(self._received.session.room or self._tree_nodes - 1, self.candidates)

    def next_number(self) -> int:
        """Numbers are never reused, over all streams: a parent that a new stream does not know is
        none of its own.
        """
        self._numbers += 1
        return self._numbers - 1

    def propose(self, nodes: Nodes) -> None:
        """Send candidates; dropped without a word while the link is down or takes no more."""
        with self._changed:
            call = self._open_call()
            if call is not None and not self.lost and call.backlog < MOST_BACKLOG:
                for message in messages.write_nodes(nodes):
                    call.send(nodes=message)

    def receive(self, timeout: float) -> Progress | None:
        """What has come since the last call; None after `timeout` seconds. Without tokens it says
        that the target is there. Raises what ended the session.
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
        """On the reader's thread. What an abandoned call still says is not listened to."""
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
        """On the reader's thread."""
        with self._changed:
            if call is self._call:
                self._lost(call, failure)
            self._changed.notify_all()

    def _lost(self, call: Call, failure: OutriderError) -> None:
        self._failure = failure

    def _opened(self, call: Call, opened: pb.Opened) -> None:
        """The target holds the session."""
        self._tree_nodes = opened.tree_nodes or self._tree_nodes
        self.candidates = min(opened.candidates or MOST_CANDIDATES, MOST_CANDIDATES)
        traffic = self.traffic
        traffic.queue_seconds += max(opened.queue_seconds, 0.0)
        traffic.prefill_seconds += max(opened.prefill_seconds, 0.0)
        traffic.reused_tokens += opened.reused_tokens

    def _take(self, call: Call, message: pb.Tokens) -> None:
        """Tokens have come, or the target's word that it is there."""
        self._received.take(messages.read_tokens(message))

    def _was_read(self) -> None:
        """There is nothing unread."""

    def _open_call(self) -> Call | None:
        """The call, as long as it is alive."""
        call = self._call
        return call if call is not None and call.failure is None else None

    def _check_prompt(self, prompt: Sequence[int]) -> None:
        """Before a target reads it."""
        length = self._description.sequence_length
        if len(prompt) >= length:
            raise LimitExceeded(
                f"a prompt of {len(prompt)} tokens leaves no room: the sequence length is "
                f"{length}, prompt and output together"
            )
