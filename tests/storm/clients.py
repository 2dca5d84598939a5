"""Honest clients: their texts must be what the target makes alone, whatever happens beside them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from typing import NamedTuple

from grpc_comm.client.connection import Connection, connect
from grpc_comm.client.remote_session import RemoteSession
from inference.decode import Loop, TargetSession, decode
from inference.draft_thread import inline, on_thread
from inference.order import Decode, Pace
from inference.proposer import BASE, DraftUsage, Nodes, Notice, Proposal
from inference.sampling import SamplingParams

TEMPERATURES = (0.0, 0.7, 1.0)
DEPTH = 6
"""Tokens of a draft."""

DRAFT_SECONDS = 0.03
"""Seconds of a draft: this one knows the text, and others take their time."""

BEYOND = 8
"""Tokens after a text's end that its draft knows, too."""


class Text(NamedTuple):
    """A text by the target alone. tokens: BEYOND more than are asked for again"""

    prompt: list[int]
    params: SamplingParams
    tokens: list[int]

    @property
    def due(self) -> list[int]:
        """Tokens that every client gets."""
        return self.tokens[:-BEYOND]

    @property
    def end(self) -> int:
        """Length at which they end, prompt included."""
        return len(self.prompt) + len(self.due)


def own_text(session: TargetSession, number: int, tokens: int, vocabulary: int) -> Text:
    """The target's own text of the client of this number."""
    chance = random.Random(number)
    prompt = [chance.randrange(vocabulary) for _ in range(chance.randint(4, 60))]
    params = SamplingParams(TEMPERATURES[number % 3], seed=chance.randrange(2**63))
    order = Decode(len(prompt) + tokens + BEYOND)
    made = [token for step in decode(prompt, params, session, order) for token in step.tokens]
    return Text(prompt, params, made)


class Scripted:
    """A Proposer that knows the text and makes mistakes; right tokens stand beside wrong ones."""

    def __init__(self, text: Sequence[int], vocabulary: int) -> None:
        self._text, self._vocabulary, self._turn = text, vocabulary, 0

    def open(self, prompt: Sequence[int], params: SamplingParams, end: int | None = None) -> None:
        self._prompt_length = self._length = len(prompt)
        self._due, self._made = True, False

    def hear(self, position: int, tokens: Sequence[int], now: float, notice: Notice | None) -> None:
        self._due = True
        if notice is not None:
            self._length = position + len(tokens)

    def work(self, now: float) -> DraftUsage | None:
        if not self._due:
            return None
        time.sleep(DRAFT_SECONDS)
        self._due, self._made = False, True
        return DraftUsage(1, DEPTH, DRAFT_SECONDS)

    def flush(self, now: float, next_number: Callable[[], int]) -> Nodes | None:
        if not self._made:
            return None
        self._made = False
        proposals, parent = list[Proposal](), BASE
        for token in self._text[self._length - self._prompt_length :][:DEPTH]:
            self._turn += 1
            if self._turn % 3 == 0:
                wrong = (token + 1) % self._vocabulary
                proposals.append(Proposal(next_number(), parent, wrong, 0.5))
            if self._turn % 5 == 0:
                break
            proposals.append(Proposal(number := next_number(), parent, token, 0.8))
            parent = number
        return Nodes(self._length - 1, proposals) if proposals else None

    def close(self) -> None: ...


def pieces(
    connection: Connection, session: RemoteSession, text: Text, *, alone: bool, pace: Pace
) -> Iterator[list[int]]:
    """The text as it comes. alone: without a draft"""
    scripted = Scripted(text.tokens, connection.description.vocabulary)
    drafter = inline() if alone else on_thread(lambda wanted: nullcontext([scripted]))
    order = Decode(text.end, pace=pace, beside=alone)
    with closing(Loop(text.prompt, text.params, session, order, drafter)) as loop:
        yield from (list(step.tokens) for step in loop.steps() if step.tokens)


def again(connection: Connection, text: Text, *, alone: bool, pace: Pace) -> list[int]:
    """The text as it comes now."""
    with closing(connection.session()) as session:
        return [
            token
            for piece in pieces(connection, session, text, alone=alone, pace=pace)
            for token in piece
        ]


def sessions_held(address: str, seconds: float) -> int:
    """Sessions that a target holds after so many seconds at most, in which leases run out."""
    until = time.monotonic() + seconds
    while True:
        with connect(address) as connection:
            if not connection.description.sessions or time.monotonic() > until:
                return connection.description.sessions
        time.sleep(0.2)
