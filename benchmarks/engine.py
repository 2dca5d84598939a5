"""What Outrider computes outside the models, in milliseconds of a processor: the engine's forward,
a message of candidates on its way in, and a proposer's call.

    python -m benchmarks.engine [--sessions 1,8,64] [--nodes 64] [--forwards 100] [--json FILE]
        [--collect_often]

The target chooses at once: token + 1 after every token. All sessions have full candidate trees
(900 nodes and more), which messages of 32 nodes keep full, and 600 or more committed tokens. The
right token is the likeliest candidate in 7 of 10 places. "forward" is all that the engine does for
one: planning, nodes, walks, commits, and what is told of it. "device waits" is the part of it
between two calls of the model, where an engine has a thread of its own; the rest is done while the
device computes. "padding" is what a backend adds on the host. Medians of the threads' own time,
since other processes share the processor. A proposer's call is measured by benchmarks/proposer.py.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.proposer import measure as measure_proposer
from benchmarks.proposer import outside_the_model
from grpc_comm.observability.events import OfModel
from grpc_comm.observability.statistics import ModelTotals, Statistics
from inference.backends import Ranked, Segment
from inference.backends.batch import Shape, check_rows, pad
from inference.engine.engine import Engine, collect_rarely
from inference.engine.session import Session
from inference.order import MOST_CREDIT, Decode
from inference.proposer import BASE, Nodes, Proposal
from inference.sampling import SamplingParams
from inference.times import LatencyModel
from inference.tree import IntArray

CAPACITY, PROMPT, VOCABULARY = 2048, 600, 100_000
MESSAGE, LEVELS = 32, 64
"""Nodes of one message, and levels of a full tree."""

FULL = 900
"""Candidates of a session before each forward."""

SURE, UNSURE = 0.75, 0.08
"""What is claimed of the right token where it is the likeliest, and where it is not."""


class NextToken:
    """A Model that chooses token + 1 after every token, in no time but that of padding its call.

    meanwhile: what others do while the device computes.
    padding, inside: [calls] processor seconds of padding, and of all that happens during the call.
    between: [calls] processor seconds of the calling thread since the end of the call before.
    """

    capacity, max_nodes, copies_rows = CAPACITY, 256, True

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.meanwhile: Callable[[], None] = lambda: None
        self.padding, self.inside, self.between = list[float](), list[float](), list[float]()
        self._ended = time.thread_time()

    def choose(self, segments: Sequence[Segment]) -> list[IntArray]:
        began = time.thread_time()
        self.between.append(began - self._ended)
        check_rows(segments)
        pad(segments, Shape.least(segments), CAPACITY)
        chosen = [(segment.tokens[segment.pick] + 1) % VOCABULARY for segment in segments]
        self.padding.append(time.thread_time() - began)
        self.meanwhile()
        self._ended = time.thread_time()
        self.inside.append(self._ended - began)
        return chosen

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        raise NotImplementedError

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        return rows, nodes

    def copy_row(self, source: int, target: int, slots: int) -> None:
        """There are no keys."""


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
    nodes, candidates, tokens: of a session in a forward, on average.
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


class Load:
    """An engine whose sessions all have what a forward can take."""

    def __init__(self, sessions: int, nodes: int) -> None:
        self.model = NextToken(sessions)
        self.engine = Engine(
            self.model,
            sequence_length=CAPACITY - nodes,
            max_tree_nodes=nodes,
            vocabulary=VOCABULARY,
            times=LatencyModel({(sessions, one): 0.03 for one in (1, nodes)}, measured=True),
        )
        counted = Statistics()  # which every server keeps
        counted.models["target"] = ModelTotals()
        self.engine.on_event = lambda event: counted(OfModel("target", event))
        self.clients = [self._client(number) for number in range(sessions)]
        self.appending = list[float]()
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
        assert self.engine.step(), "everybody can go on"
        return time.thread_time() - began - self.model.inside[-1]

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
        for client in self.clients:
            self.engine.acknowledge(client.session, client.session.length)
        self._send()

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
    )


def say(costs: Sequence[Cost], proposer_ms: float) -> None:
    """A table in Markdown."""
    print(
        "| sessions | forward, ms | quickest tenth | mean | slowest | device waits, ms | "
        "quickest tenth | padding, ms | message, ms | nodes | candidates | tokens |"
    )
    print("|---" * 12 + "|")
    for one in costs:
        times = (
            f"{one.forward_ms:.2f} | {one.quick_ms:.2f} | {one.mean_ms:.2f} | "
            f"{one.slowest_ms:.1f} | {one.wait_ms:.2f} | {one.quick_wait_ms:.2f} | "
            f"{one.padding_ms:.2f} | {one.message_ms:.3f}"
        )
        print(
            f"| {one.sessions} | {times} | {one.nodes:.0f} | {one.candidates:.0f} | "
            f"{one.tokens:.1f} |"
        )
    print(f"A proposer's call outside the model: {proposer_ms:.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", default="1,8,64", help="default: %(default)s")
    parser.add_argument(
        "--nodes", type=int, default=64, help="of a session in one forward (default: %(default)s)"
    )
    parser.add_argument("--forwards", type=int, default=100, help="default: %(default)s")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument(
        "--collect_often",
        action="store_true",
        help="leave Python's garbage collector as it is; a target's process makes it look rarely",
    )
    given = parser.parse_args()
    if not given.collect_often:
        collect_rarely()
    counts = [int(count) for count in given.sessions.split(",")]
    costs = [cost(count, given.nodes, given.forwards) for count in counts]
    proposer_ms = 1e3 * outside_the_model(*measure_proposer())
    say(costs, proposer_ms)
    if given.json:
        figures = {"engine": [one._asdict() for one in costs], "proposer_ms": proposer_ms}
        Path(given.json).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
