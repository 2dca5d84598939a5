"""A second device at a session: it hears what is committed and appends candidates, no more."""

from __future__ import annotations

from collections.abc import Sequence

from grpc_comm import translate
from grpc_comm.client.call import Call
from grpc_comm.client.received import Received
from grpc_comm.client.remote_session import LONGEST_SILENCE
from grpc_comm.client.transport_pool import Line, Ticket
from grpc_comm.client.wire_session import ListeningSession

HEARTBEAT_SECONDS = 3.0


class AttachedSession(ListeningSession):
    """A session that another connection owns.

    It ends with the session, when its link breaks, or when the owner resumes the session; receive()
    then raises. It does not look for the target again: the owner has another ticket then.
    """

    def __init__(self, line: Line, ticket: Ticket) -> None:
        super().__init__(line.description)
        self._line, self._ticket = line, ticket

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
            call = self._call = Call(self._line.start(0), self, self.traffic, self._line.address(0))
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
