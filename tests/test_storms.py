"""Whatever happens to links and targets, at any moment, the text is the target's own."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack

import pytest

from grpc_comm.client.connection import connect
from grpc_comm.client.patience import Patience
from grpc_comm.server.server import BackgroundServer
from inference.backends import Chosen, Segment
from inference.backends.eager import EagerModel
from inference.engine.engine import Engine
from inference.engine.local_session import LocalSession
from inference.order import Decode, Pace
from inference.sampling import SamplingParams
from outrider.link.emulated_link import ShapedLink, shaped_link
from tests.support import pairs
from tests.support.drafts import proposers_of, text_of
from tests.support.wire_fixtures import LOOPBACK, WAIT, background

PROMPT, END = [7, 3, 30], 123
PATIENCE = Patience(WAIT)


class Unhurried(EagerModel):
    """A forward takes some milliseconds, so that there is time for something to happen."""

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        time.sleep(0.004)
        return super().choose(segments)


def engine() -> Engine:
    model = Unhurried(pairs.decoder(1), rows=2, capacity=pairs.SEQUENCE_LENGTH + 64, max_nodes=64)
    return Engine(
        model,
        sequence_length=pairs.SEQUENCE_LENGTH,
        max_tree_nodes=64,
        vocabulary=pairs.VOCABULARY,
    )


class Weather:
    """Two targets, each behind a link, and what happens to them on a thread of its own."""

    def __init__(self, seed: int, stack: ExitStack) -> None:
        self._chance, self._over = random.Random(seed), threading.Event()
        self._engines = [engine(), engine()]
        self._servers: list[BackgroundServer] = [background(one) for one in self._engines]
        self.links: list[ShapedLink] = [
            stack.enter_context(shaped_link(str(server.address))) for server in self._servers
        ]
        self.events: list[str] = []
        self._thread = threading.Thread(target=self._rage)

    def __enter__(self) -> Weather:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(WAIT)
        for server in self._servers:
            server.stop()

    def _rage(self) -> None:
        while not self._over.wait(self._chance.uniform(0.02, 0.25)):
            event = self._chance.choice(["cut", "cut", "drain", "stop", "end"])
            self.events.append(event)
            which = self._chance.randrange(2)
            if event == "cut":
                self.links[which].cut()
            elif event == "end":  # of all sessions, as if their leases had run out
                running = self._engines[which]
                for session in running.sessions:
                    running.close(session)
            else:
                server = self._servers[which]
                server.stop(grace=2.0 if event == "drain" else None)
                address = LOOPBACK._replace(port=server.address.port)
                self._engines[which] = engine()
                self._servers[which] = background(self._engines[which], address)


@pytest.mark.parametrize("seed", range(6))
def test_a_text_over_broken_links_and_targets_that_come_and_go(seed: int) -> None:
    params = SamplingParams((0.0, 0.7, 1.0)[seed % 3], seed=seed)
    pace = Pace(seed % 2)
    alone = text_of(PROMPT, params, LocalSession(pairs.engine(pairs.decoder(1))), Decode(END))
    with ExitStack() as stack, Weather(seed, stack) as weather:
        addresses = ",".join(link.address for link in weather.links)
        with connect(addresses, timeout=WAIT, patience=PATIENCE) as connection:
            for draft in ("close", "none"):
                session, order = connection.session(), Decode(END, pace=pace)
                text = text_of(PROMPT, params, session, order, proposers_of(draft, pace))
                assert text == alone, weather.events
