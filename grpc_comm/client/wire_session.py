"""The receiving half of a client's session: receives tokens and acknowledges them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from grpc_comm import translate
from grpc_comm.client.call import Call
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.translate import Description, SessionTerms
from inference.errors import InvalidRequest, OutriderError
from inference.order import MIN_CREDIT, Progress, TokenLogProb
from inference.proposer import MAX_CANDIDATES
from inference.sampling import SamplingParams
from inference.text_log import TextCopy, Traffic

ACKNOWLEDGED_AT_ONCE = MIN_CREDIT // 4
"""Number of tokens acknowledged together: small enough that a distant target does not run out of
credit.
"""


class WireSession:
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
        """Handle a message, on the reader thread. Ignores messages of an abandoned call."""
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

    def _handle_opened(self, call: Call, terms: SessionTerms) -> None:
        """Record that the target has opened the session."""
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
        """Return the call if it is open, else None."""
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
        translate.check_prompt_length(len(prompt), self._description.sequence_length)
