"""Clients at targets that are killed, drained and restarted, over links that break: every text is
the target's own.

Two targets of the embedded pair are processes of their own, each behind a link that is cut at
random. Clients draft with mistakes, at temperatures 0, 0.7 and 1, for targets that go on or wait,
or let the target decode alone. Some leave in the middle of an order, some vanish without a word.
"""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from grpc_comm.client.connection import Connection, connect
from grpc_comm.client.patience import Patience
from inference.engine.local_session import LocalSession
from inference.errors import Unavailable
from inference.order import Decode, Pace
from inference.stats import Traffic
from outrider.link.emulated_link import ShapedLink, shaped_link
from outrider.options.roles import TargetRole
from outrider.target.spawn import role_command, role_environment
from outrider.target.target import READY, load_target
from tests.storm.clients import BEYOND, Text, own_text, pieces, sessions_held

SESSIONS, ROWS, WAITING, TOKENS, SEQUENCE_LENGTH = 16, 4, 6, 24, 256
LEASE_SECONDS, CUT_EVERY = 2.0, 0.3
DEADLINE = 180.0
"""Seconds after which what still runs counts as hanging."""

FLAGS = {
    "batch": ROWS,
    "waiting": WAITING,
    "lease": LEASE_SECONDS,
    "sequence_length": SEQUENCE_LENGTH,
}


class TargetProcess:
    """A target of the embedded pair that keeps its port when it is restarted."""

    def __init__(self) -> None:
        self.address = ""
        self.start()

    def start(self) -> None:
        port = self.address.rpartition(":")[2] or "0"
        flags = [word for name, value in FLAGS.items() for word in (f"--{name}", str(value))]
        self._process = subprocess.Popen(
            role_command("target", "--port", port, *flags),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=role_environment(),
        )
        assert self._process.stderr is not None
        said = []
        for line in self._process.stderr:
            said.append(line)
            if line.startswith(READY):
                break
        assert said[-1:], "the target said nothing"
        assert said[-1].startswith(READY), said
        self.address = said[-1].removeprefix(READY).split()[0]
        rest = threading.Thread(target=deque, args=(self._process.stderr, 0), daemon=True)
        rest.start()  # a full pipe would stop it

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def drain(self) -> int:
        """SIGTERM; the exit status."""
        self._process.terminate()
        return self._process.wait(DEADLINE)


@dataclass
class Client:
    """One text, on a thread. leave_at: tokens after which it leaves.  vanishes: without a word"""

    number: int
    text: Text
    addresses: str
    leave_at: int | None
    vanishes: bool
    made: list[int] = field(default_factory=list)
    traffic: Traffic = field(default_factory=Traffic)

    @property
    def tokens(self) -> int:
        """Tokens that it wants."""
        return self.leave_at or TOKENS

    def attend(self) -> None:
        pace = Pace(self.number % 4 == 1)
        with self._connected() as connection:
            session = connection.session()
            self.traffic = session.traffic
            made = pieces(connection, session, self.text, alone=self.number % 5 == 4, pace=pace)
            with closing(made):
                for piece in made:
                    self.made += piece
                    if self.leave_at is not None and len(self.made) >= self.leave_at:
                        break
            if self.leave_at is not None:  # nobody waits for it
                session.decode(Decode(self.text.end + BEYOND))
            if not self.vanishes:
                session.close()

    def _connected(self) -> Connection:
        """Connect again where a cut ended the first call, which no connection repeats."""
        until = time.monotonic() + DEADLINE
        while True:
            try:
                return connect(self.addresses, timeout=DEADLINE, patience=Patience(DEADLINE))
            except Unavailable:
                if time.monotonic() > until:
                    raise


def own_texts() -> list[Text]:
    """Texts that the target makes of them in this process."""
    engine = load_target(TargetRole(batch=1, sequence_length=SEQUENCE_LENGTH)).engine
    with closing(LocalSession(engine)) as alone:
        return [own_text(alone, number, TOKENS, engine.vocabulary) for number in range(SESSIONS)]


class Weather:
    """Events of targets and links, by the share of all tokens that have come."""

    def __init__(self, target: TargetProcess, clients: Sequence[Client]) -> None:
        self.cuts = 0
        self._target, self._clients = target, clients
        self._chance, self._over = random.Random(1), threading.Event()

    def cut(self, links: Sequence[ShapedLink], texts: Sequence[Future[None]]) -> None:
        """Cut links until every client has ended."""
        until = time.monotonic() + DEADLINE
        while time.monotonic() < until and not all(text.done() for text in texts):
            self._chance.choice(links).cut()
            self.cuts += 1
            time.sleep(min(self._chance.expovariate(1 / CUT_EVERY), 2.0))
        self._over.set()

    def trouble(self) -> None:
        """The target is killed and restarted, then drained and restarted."""
        self._await(0.2)
        self._target.kill()
        self._target.start()
        self._await(0.7)
        assert self._target.drain() == 0
        self._target.start()

    def _await(self, share: float) -> None:
        due = share * sum(client.tokens for client in self._clients)
        while sum(len(client.made) for client in self._clients) < due:
            assert not self._over.wait(0.02), f"the storm was over before {share:.0%} had come"


def clients_of(texts: Sequence[Text], links: Sequence[ShapedLink]) -> list[Client]:
    first, second = (link.address for link in links)
    ways = (first, f"{first},{second}", first, f"{second},{first}")
    chance = random.Random(0)
    return [
        Client(
            number,
            text,
            ways[number % 4],
            chance.randrange(1, TOKENS) if number % 6 > 3 else None,
            vanishes=number % 6 == 4,
        )
        for number, text in enumerate(texts)
    ]


def test_a_storm_changes_no_text_and_leaves_nothing_behind() -> None:
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(SESSIONS + 1))
        making = pool.submit(own_texts)
        targets = list(pool.map(lambda _: TargetProcess(), range(2)))
        for target in targets:
            stack.callback(target.kill)
        links = [stack.enter_context(shaped_link(target.address)) for target in targets]
        clients = clients_of(making.result(), links)
        weather = Weather(targets[0], clients)
        texts = [pool.submit(client.attend) for client in clients]
        trouble = pool.submit(weather.trouble)
        weather.cut(links, texts)
        for client, text in zip(clients, texts, strict=True):
            text.result(0)
            assert client.made == client.text.due[: len(client.made)], client
            assert len(client.made) >= client.tokens
        trouble.result(DEADLINE)
        assert [sessions_held(one.address, 3 * LEASE_SECONDS + 10) for one in targets] == [0, 0]
    resumes, reopenings = (
        sum(getattr(client.traffic, what) for client in clients)
        for what in ("resumes", "reopenings")
    )
    assert min(weather.cuts, resumes, reopenings) > 0
