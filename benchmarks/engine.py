"""Cost of the engine outside the model, in milliseconds of a processor: a forward, and a
message of candidates on its way in.

    python -m benchmarks.engine [--sessions 1,8,64] [--nodes 64] [--forwards 100]

The target chooses at once: token + 1 after every token. All sessions have full candidate trees
(900 nodes and more), which messages of 32 nodes keep full, and 600 or more committed tokens. The
right token is the likeliest candidate in 7 of 10 places. "forward" is all that the engine does for
one: planning, nodes, walks, commits, and what is told of it. "device waits" is the part of it
between two calls of the model, where an engine has a thread of its own; the rest is done while the
device computes. "padding" is what a backend adds on the host. "collections" are those of Python's
garbage collector during all forwards, without messages. Medians of the threads' own time,
since other processes share the processor.
"""

from __future__ import annotations

import gc
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from benchmarks.capacity.script import ScriptedTarget
from benchmarks.harness import Flags, JsonFile, run, table_lines, write_json
from grpc_comm.observability.metrics import Metrics
from grpc_comm.observability.server_events import Listeners, OfModel
from grpc_comm.observability.session_record import SessionRecords
from inference.backends import Chosen, Segment
from inference.backends.batch import BatchShape, check_rows, pad
from inference.engine.batch_runner import collect_rarely
from inference.engine.engine import Engine
from inference.engine.session import Session
from inference.flags.values import Counts
from inference.order import MOST_CREDIT, Decode
from inference.proposer import BASE, Nodes, Proposal
from inference.sampling import SamplingParams
from inference.times import Times

CAPACITY, PROMPT, VOCABULARY = 2048, 600, 100_000
MESSAGE, LEVELS = 32, 64
"""Nodes of one message, and levels of a full tree."""

FULL = 900
"""Candidates of a session before each forward."""

SURE, UNSURE = 0.75, 0.08
"""Chances claimed of the right token where it is the likeliest, and where it is not."""


class NextToken(ScriptedTarget):
    """A Model that chooses token + 1 after every token, in no time but that of padding its call.

    meanwhile: what others do while the device computes.
    padding, inside: [calls] processor seconds of padding, and of all that happens during the call.
    between: [calls] processor seconds of the calling thread since the end of the call before.
    """

    def __init__(self, rows: int) -> None:
        super().__init__(rows, CAPACITY, 256)
        self.meanwhile: Callable[[], None] = lambda: None
        self.padding, self.inside, self.between = list[float](), list[float](), list[float]()
        self._ended = time.thread_time()

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        began = time.thread_time()
        self.between.append(began - self._ended)
        check_rows(segments)
        pad(segments, BatchShape.least(segments), CAPACITY)
        chosen = [Chosen((segment.tokens[segment.pick] + 1) % VOCABULARY) for segment in segments]
        self.padding.append(time.thread_time() - began)
        self.meanwhile()
        self._ended = time.thread_time()
        self.inside.append(self._ended - began)
        return chosen


class Right(NamedTuple):
    """A token of the text that a client has sent."""

    position: int
    number: int
    token: int


class Client:
    """Sends the line of right tokens, and wrong ones beside it, level by level."""

    def __init__(self, session: Session, stream: int, seed: int) -> None:
        self.session, self.stream = session, stream
        self._random, self._numbers = np.random.default_rng(seed), 0
        self._line: list[Right] = []
        self._start = session.length - 1  # all nodes but the first hang below others
        self._last = Right(self._start, BASE, session.root)

    @property
    def full(self) -> bool:
        return self.session.candidates.live >= FULL

    def message(self) -> Nodes:
        """The line is as long as it should be; the other nodes are wrong."""
        base, proposals = self.session.length - 1, list[Proposal]()
        self._line = [one for one in self._line if one.position > base]
        while len(proposals) < MESSAGE:
            if self._last.position < base + LEVELS and len(proposals) < MESSAGE // 2:
                proposals.append(self._right())
            else:
                proposals.append(self._wrong())
        return Nodes(self._start, proposals)

    def _right(self) -> Proposal:
        before, chance = self._last, SURE if self._random.random() < 0.7 else UNSURE
        number = self._number()
        self._last = Right(before.position + 1, number, (before.token + 1) % VOCABULARY)
        self._line.append(self._last)
        return Proposal(number, before.number, self._last.token, chance)

    def _wrong(self) -> Proposal:
        above = self._line[int(self._random.integers(len(self._line)))]
        token = int(self._random.integers(VOCABULARY))
        return Proposal(self._number(), above.number, token, float(self._random.uniform(0.02, 0.5)))

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers - 1


class Cost(NamedTuple):
    """Milliseconds of processors, by forward and by message. quick_ms: a tenth of the forwards took
    no longer. slowest_ms: none took longer. wait_ms: the part of it in which the device waits.
    nodes, candidates, tokens: of a session in a forward, on average. collections: of garbage during
    all forwards.
    """

    sessions: int
    forward_ms: float
    quick_ms: float
    mean_ms: float
    slowest_ms: float
    wait_ms: float
    quick_wait_ms: float
    padding_ms: float
    message_ms: float
    nodes: float
    candidates: float
    tokens: float
    collections: int


class Load:
    """An engine whose sessions all have what a forward can take."""

    def __init__(self, sessions: int, nodes: int) -> None:
        self.model, self._refilling = NextToken(sessions), False
        self.engine = Engine(
            self.model,
            sequence_length=CAPACITY - nodes,
            max_tree_nodes=nodes,
            vocabulary=VOCABULARY,
            times=Times({(sessions, one): 0.03 for one in (1, nodes)}, measured=True),
        )
        records = SessionRecords()
        listeners = Listeners([records, Metrics(records)])  # which a server may have
        self.engine.listeners.append(lambda event: listeners(OfModel("target", event)))
        self.clients = [self._client(number) for number in range(sessions)]
        self.appending, self.collections = list[float](), 0
        self._send()
        self.model.meanwhile = self.refill
        self.appending.clear()

    @property
    def candidates(self) -> float:
        """Candidates that a session has, on average."""
        return statistics.mean(client.session.candidates.live for client in self.clients)

    def forward(self) -> float:
        """Processor seconds of the next forward, all that it leaves for later included."""
        began = time.thread_time()
        with self._counting():
            assert self.engine.step(), "everybody can go on"
        return time.thread_time() - began - self.model.inside[-1]

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Count collections of garbage, except those while messages are made."""

        def count(phase: str, _: object) -> None:
            self.collections += phase == "start" and not self._refilling

        gc.callbacks.append(count)
        try:
            yield
        finally:
            gc.callbacks.remove(count)

    def run(self, forwards: int) -> list[float]:
        """Processor seconds of the engine's thread before each forward but the first, while the
        device waits. What forwards leave for later is done on another thread.
        """
        stopped, made = threading.Event(), len(self.model.between)

        def refill() -> None:
            self.refill()
            if len(self.model.between) - made == forwards:
                stopped.set()

        self.model.meanwhile = refill
        self.engine.run(stopped)
        return self.model.between[made + 1 :]

    def refill(self) -> None:
        """The clients acknowledge what came, and send candidates until their trees are full."""
        self._refilling = True
        for client in self.clients:
            self.engine.acknowledge(client.session, client.session.length)
        self._send()
        self._refilling = False

    def _send(self) -> None:
        for client in self.clients:
            while not client.full:
                nodes = client.message()
                began = time.thread_time()
                self.engine.append(client.session, client.stream, nodes)
                self.appending.append(time.thread_time() - began)

    def _client(self, number: int) -> Client:
        prompt = [(number * CAPACITY + token) % VOCABULARY for token in range(PROMPT)]
        session, opened = self.engine.open(prompt, SamplingParams())
        self.engine.finish(opened)
        order = Decode(self.engine.sequence_length, credit=MOST_CREDIT)
        self.engine.decode(session, order)
        return Client(session, self.engine.join(session), number)


def cost(sessions: int, nodes: int, forwards: int) -> Cost:
    """Medians over so many forwards, in which everybody took part."""
    load = Load(sessions, nodes)
    spent = [client.session.spent.nodes for client in load.clients]
    begun = sum(client.session.length for client in load.clients)
    took, held = list[float](), list[float]()
    for _ in range(forwards):
        held.append(load.candidates)
        took.append(load.forward())
    computed = sum(
        client.session.spent.nodes - before
        for client, before in zip(load.clients, spent, strict=True)
    )
    tokens = sum(client.session.length for client in load.clients) - begun
    waits = load.run(forwards)
    return Cost(
        sessions,
        1e3 * statistics.median(took),
        1e3 * statistics.quantiles(took, n=10)[0],
        1e3 * statistics.mean(took),
        1e3 * max(took),
        1e3 * statistics.median(waits),
        1e3 * statistics.quantiles(waits, n=10)[0],
        1e3 * statistics.median(load.model.padding),
        1e3 * statistics.median(load.appending),
        computed / forwards / sessions,
        statistics.mean(held),
        tokens / forwards / sessions,
        load.collections,
    )


HEADS = (
    *("sessions", "forward, ms", "quickest tenth", "mean", "slowest", "device waits, ms"),
    *("quickest tenth", "padding, ms", "message, ms", "nodes", "candidates", "tokens"),
    "collections",
)


def row(one: Cost) -> list[str]:
    """A line of the table of HEADS."""
    times = [one.forward_ms, one.quick_ms, one.mean_ms, one.slowest_ms, one.wait_ms]
    times += [one.quick_wait_ms, one.padding_ms]
    counts = [f"{one.nodes:.0f}", f"{one.candidates:.0f}", f"{one.tokens:.1f}"]
    each = [*(f"{ms:.2f}" for ms in times), f"{one.message_ms:.3f}", *counts]
    return [str(one.sessions), *each, str(one.collections)]


class Options(Flags):
    sessions: Counts = (1, 8, 64)
    nodes: int = 64
    """of a session in one forward"""
    forwards: int = 100
    json_file: JsonFile = None
    collect_often: bool = False
    """leave Python's garbage collector as it is; a target's process makes it look rarely"""


def main(given: Options) -> None:
    if not given.collect_often:
        collect_rarely()
    costs = [cost(count, given.nodes, given.forwards) for count in given.sessions]
    print(*table_lines(HEADS, map(row, costs)), sep="\n")
    write_json(given.json_file, [one._asdict() for one in costs])


if __name__ == "__main__":
    run(Options, main)
