"""An honest client among hostile ones: its texts must be what they were before the others came."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

from grpc_comm.client.connection import Connection, connect
from grpc_comm.client.patience import Patience
from grpc_comm.client.remote_session import RemoteSession
from inference.decode import decode
from inference.errors import OutriderError
from inference.order import Decode
from inference.sampling import SamplingParams
from outrider.link.emulated_link import shaped_link
from tests.storm.client import BEYOND, Job, pieces

TOKENS, PROMPT_TOKENS = 12, 6
TEMPERATURES = (0.0, 1.0)
PATIENCE_SECONDS = 30.0


class Text(NamedTuple):
    """Text that the target makes of a prompt; a little longer than it is asked for again."""

    prompt: list[int]
    params: SamplingParams
    tokens: list[int]


def first_texts(connection: Connection) -> list[Text]:
    """By the target alone, before anybody else came."""
    texts = []
    for seed, temperature in enumerate(TEMPERATURES, 1):
        prompt = [seed * 7 + step for step in range(PROMPT_TOKENS)]
        params = SamplingParams(temperature, seed=seed)
        order = Decode(PROMPT_TOKENS + TOKENS + BEYOND)
        texts.append(Text(prompt, params, _made(connection.session(), prompt, params, order)))
    return texts


def again(
    connection: Connection, text: Text, tokens: int, *, alone: bool, waits: bool
) -> list[int]:
    """The text as drafts with mistakes, or the target alone, bring it now."""
    job = Job(
        session=text.params.seed,
        addresses="",
        prompt=text.prompt,
        text=text.tokens,
        tokens=tokens,
        temperature=text.params.temperature,
        seed=text.params.seed,
        alone=alone,
        waits=waits,
        leave_at=None,
        abruptly=False,
        patience=PATIENCE_SECONDS,
    )
    session = connection.session()
    try:
        return [token for piece in pieces(job, connection, session) for token in piece]
    finally:
        session.close()


def every_call(connection: Connection, text: Text, tokens: int = TOKENS) -> list[list[int]]:
    """The text's first tokens in each way that there is to ask for them."""
    both = (False, True)
    made = [
        again(connection, text, tokens, alone=alone, waits=waits)
        for alone in both
        for waits in both
    ]
    end = len(text.prompt) + tokens
    orders = (
        Decode(end, frozenset({2**16}), 10**9, 1e6, credit=100),
        Decode(end, beside=True),
    )
    made += [_made(connection.session(), text.prompt, text.params, order) for order in orders]
    return [*made, _resumed(connection, text, tokens)]


def _made(
    session: RemoteSession, prompt: Sequence[int], params: SamplingParams, order: Decode
) -> list[int]:
    try:
        return [token for step in decode(prompt, params, session, order) for token in step.tokens]
    finally:
        session.close()


def _resumed(connection: Connection, text: Text, tokens: int) -> list[int]:
    """The text over a link that breaks before anything was ordered."""
    patience, made = Patience(PATIENCE_SECONDS), list[int]()
    with shaped_link(connection.address) as link, connect(link.address, patience=patience) as own:
        session = own.session()
        session.open(text.prompt, text.params)
        while not session.is_open:
            session.receive(PATIENCE_SECONDS)
        stream = session.stream
        link.cut()
        while session.stream == stream:
            session.receive(PATIENCE_SECONDS)
        session.decode(Decode(len(text.prompt) + tokens))
        while len(made) < tokens:
            progress = session.receive(PATIENCE_SECONDS)
            made += [] if progress is None else progress.tokens
        session.close()
    return made


class Neighbour:
    """One who goes on all the while, on a thread of its own."""

    def __init__(self, address: str, texts: Sequence[Text]) -> None:
        self.texts, self.problems = 0, list[str]()
        self._address, self._due = address, texts
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        patience = Patience(PATIENCE_SECONDS)
        try:
            with connect(self._address, timeout=PATIENCE_SECONDS, patience=patience) as connection:
                while not self._over.is_set():
                    for text in self._due:
                        made = again(connection, text, TOKENS, alone=False, waits=False)
                        self._compare(text, made)
        except OutriderError as error:
            self.problems.append(f"the neighbour failed: {type(error).__name__}: {error}")

    def _compare(self, text: Text, made: list[int]) -> None:
        self.texts += 1
        if made != text.tokens[:TOKENS]:
            temperature = text.params.temperature
            self.problems.append(f"the neighbour's text at temperature {temperature} differs")
