"""A session over a wire: tokens arrive unasked, and candidates are sent at any time."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from grpc_comm import messages, translate
from grpc_comm.client.call import Call
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.translate import Description, SessionTerms
from inference.errors import InvalidRequest, OutriderError
from inference.order import Progress, TokenLogProb
from inference.proposer import MOST_CANDIDATES, Nodes
from inference.sampling import SamplingParams
from inference.stats import Traffic
from inference.text_copy import TextCopy

MOST_BACKLOG = 16
"""Messages that may wait for the link. Further candidates are dropped."""


LONGEST_SILENCE = 30.0
"""Seconds of silence after which a target counts as lost. A live one speaks every second."""


class WireSession:
    """A session whose tokens arrive on a call, on the call's reader thread.

    stream: id of the stream of proposals; a new stream knows nothing of earlier proposals
    candidates: maximum that the target stores for this session
    next_number: number of the next proposed node. Numbers are never reused, over all streams, so a
        parent that a new stream does not know is never mistaken for another node
    """

    def __init__(self, description: Description) -> None:
        self.traffic, self.stream, self.candidates = Traffic(), 0, MOST_CANDIDATES
        self._description = description
        self._changed = threading.Condition()  # guards everything; a call's own lock lies within
        self._call: Call | None = None
        self._failure: OutriderError | None = None
        self._received = self._copy((), SamplingParams())
        self._leaving = ""  # why the target goes away, as it reported
        self.next_number, self._tree_nodes = 0, description.max_tree_nodes

    @property
    def lost(self) -> bool:
        """Whether the target is being looked for."""
        return False

    @property
    def prompt_logprobs(self) -> tuple[TokenLogProb, ...]:
        """Log-probabilities of the prompt's tokens but the first, if requested and received."""
        return self._received.prompt_logprobs

    @property
    def room(self) -> int:
        """Candidates of this session that fit into a forward pass at present."""
        return min(self._received.latest.room or self._tree_nodes - 1, self.candidates)

    def propose(self, nodes: Nodes) -> None:
        """Send candidates. They are dropped silently while the link is down or too slow."""
        self.next_number = nodes.end
        with self._changed:
            call = self._open_call()
            if call is not None and not self.lost and call.backlog < MOST_BACKLOG:
                for message in messages.write_nodes(nodes):
                    call.send(nodes=message)

    def receive(self, timeout: float) -> Progress | None:
        """Return what was received since the last call; None after `timeout` seconds.

        Progress without tokens is a heartbeat. Raises the error that ended the session.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                progress = self._received.read()
                if progress is not None:
                    self._on_read()
                    return progress
                if self._failure is not None:
                    raise self._failure
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(left)

    def on_message(self, call: Call, message: pb.ServerMessage) -> None:
        """Handle a message, on the reader's thread. Messages of an abandoned call are ignored."""
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

    def on_end(self, call: Call, failure: OutriderError) -> None:
        """Record that the call has ended, on the reader's thread."""
        with self._changed:
            if call is self._call:
                self._handle_end(call, failure)
            self._changed.notify_all()

    def _handle_end(self, call: Call, failure: OutriderError) -> None:
        self._failure = failure

    def _handle_opened(self, call: Call, terms: SessionTerms) -> None:
        """Record that the target has opened the session."""
        self._tree_nodes = terms.tree_nodes or self._tree_nodes
        self.candidates = terms.candidates
        self._received.take_opened(terms.opened)

    def _handle_tokens(self, call: Call, progress: Progress) -> None:
        """Store tokens, or the target's heartbeat."""
        self._received.take(progress)

    def _on_read(self) -> None:
        """Called when everything received has been read."""

    def _copy(self, prompt: Sequence[int], params: SamplingParams) -> TextCopy:
        return TextCopy(prompt, params, self._description.vocabulary, self.traffic)

    def _open_call(self) -> Call | None:
        """Return the call while it is alive, else None."""
        call = self._call
        return call if call is not None and call.failure is None else None

    def _check_opening(self, prompt: Sequence[int], params: SamplingParams) -> None:
        """Raise InvalidRequest, before anything is sent, for a prompt that is too long or a rule
        that the target does not support.
        """
        if params.needs_rule and not self._description.rules:
            raise InvalidRequest(
                "the target supports no grammar, penalties or biases, and reports no "
                "log-probabilities: it needs this version of Outrider, and compiled graphs need "
                "`outrider compile --masks`"
            )
        translate.check_prompt_length(len(prompt), self._description.sequence_length)
