"""Honest clients: their texts must be what the target makes alone, whatever happens beside them."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from typing import NamedTuple

from grpc_comm.client.connection import Connection, connect
from inference.decode import Loop, TargetSession, decode
from inference.draft_thread import inline, on_thread
from inference.order import Decode, Pace
from inference.sampling import SamplingParams
from tests.support.scripted_models import Foreteller

TEMPERATURES = (0.0, 0.7, 1.0)
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


def with_mistakes(text: Sequence[int], vocabulary: int) -> list[int]:
    """The text, but that every fifth token is another one."""
    return [(token + (at % 5 == 4)) % vocabulary for at, token in enumerate(text)]


def again(connection: Connection, text: Text, *, alone: bool, pace: Pace) -> list[int]:
    """The text as it comes now. alone: without a draft"""
    named = with_mistakes(text.tokens, connection.description.vocabulary)
    drafter = inline() if alone else on_thread(lambda wanted: nullcontext([Foreteller(named)]))
    order = Decode(text.end, pace=pace, beside=alone)
    with (
        closing(connection.session()) as session,
        closing(Loop(text.prompt, text.params, session, order, drafter)) as loop,
    ):
        return [token for step in loop.steps() for token in step.tokens]


def sessions_held(address: str, seconds: float) -> int:
    """Sessions that a target holds after so many seconds at most, in which leases run out."""
    until = time.monotonic() + seconds
    while True:
        with connect(address) as connection:
            if not connection.description.sessions or time.monotonic() > until:
                return connection.description.sessions
        time.sleep(0.2)
