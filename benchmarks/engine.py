"""Processor time of the engine outside the model, in milliseconds: a forward pass, and a message
of candidates.

    python -m benchmarks.engine [--sessions 1,8,64] [--nodes 16] [--forwards 100]

The target chooses token + 1 at once. All sessions have 900 candidates or more, which messages of 32
nodes renew, and 600 committed tokens. The right token is the likeliest candidate in 7 of 10
places. "forward pass" is all that the engine does for one; "device waits" is the part of it between
two calls of the model, where the engine has a thread of its own. Medians of the threads' own time,
since other processes share the processor.
"""

from __future__ import annotations

import gc
import statistics
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.floor.race import ScriptedTarget
from benchmarks.harness import Flags, JsonFile, run, table_lines, write_json
from grpc_comm.observability.metrics import Metrics
from grpc_comm.observability.model_observer import ModelObserver
from inference.backends import Chosen, Segment
from inference.backends.batch import BatchShape, check_rows, pad
from inference.engine.batch_runner import collect_rarely
from inference.engine.engine import Engine
from inference.flags.values import Counts
from inference.order import MAX_CREDIT, Decode
from inference.proposer import Nodes
from inference.sampling import SamplingParams
from inference.times import Times

CAPACITY, PROMPT, VOCABULARY = 2048, 600, 100_000
MESSAGE, LEVELS, CANDIDATES = 32, 64, 900
"""Nodes of a message, levels of a full tree, and its nodes."""

LIKELIEST, UNLIKELY = 0.75, 0.08
"""Chances claimed of the right token."""


class NextToken(ScriptedTarget):
    """A Model that chooses token + 1, in no time but that of padding its call.

    meanwhile: what clients do while the device computes
    inside, between: [calls] processor seconds of a call, and of its thread since the one before
    """

    capacity = CAPACITY

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.meanwhile: Callable[[], None] = lambda: None
        self.inside, self.between, self._ended = list[float](), list[float](), 0.0

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        began = time.thread_time()
        self.between.append(began - self._ended)
        check_rows(segments)
        pad(segments, BatchShape.of(segments), CAPACITY)
        self.meanwhile()
        self._ended = time.thread_time()
        self.inside.append(self._ended - began)
        return [Chosen((segment.tokens[segment.pick] + 1) % VOCABULARY) for segment in segments]


class Client:
    """Sends the line of right tokens, and wrong ones beside it, level by level."""

    def __init__(self, engine: Engine, number: int) -> None:
        prompt = [(number * CAPACITY + token) % VOCABULARY for token in range(PROMPT)]
        self._engine, (self.session, prefill) = engine, engine.open(prompt, SamplingParams())
        engine.finish(prefill)
        engine.decode(self.session, Decode(engine.sequence_length, credit=MAX_CREDIT))
        self._stream, self._random = engine.join(self.session), np.random.default_rng(number)
        self._start, self._next_number = self.session.length - 1, 0
        self._last = self._start, -1, self.session.root  # position, number, token
        self._line = list[tuple[int, int]]()  # positions and numbers of right tokens

    def refill(self) -> list[float]:
        """Acknowledge what came, and send candidates up to a full tree. Returns the processor
        seconds that each message took.
        """
        self._engine.acknowledge(self.session, self.session.length)
        seconds = list[float]()
        while self.session.candidates.live < CANDIDATES:
            nodes = self._message()
            began = time.thread_time()
            self._engine.append(self.session, self._stream, nodes)
            seconds.append(time.thread_time() - began)
        return seconds

    def _message(self) -> Nodes:
        base, first = self.session.length - 1, self._next_number
        columns = list[tuple[int, int, float]]()  # distance back to the parent, token, chance
        self._line = [(position, number) for position, number in self._line if position > base]
        while len(columns) < MESSAGE:
            number, self._next_number = self._next_number, self._next_number + 1
            if self._last[0] < base + LEVELS and len(columns) < MESSAGE // 2:
                position, parent, token = self._last
                chance = LIKELIEST if self._random.random() < 0.7 else UNLIKELY
                self._last = position + 1, number, (token + 1) % VOCABULARY
                self._line.append(self._last[:2])
                back = number - parent if parent >= 0 else 0  # 0 is the text
                columns.append((back, self._last[2], chance))
            else:
                parent = self._line[int(self._random.integers(len(self._line)))][1]
                token, chance = int(self._random.integers(VOCABULARY)), self._random.uniform(0, 0.5)
                columns.append((number - parent, token, max(chance, 0.02)))
        parents, tokens, chances = zip(*columns, strict=True)
        return Nodes(self._start, first, parents, tokens, chances)


def measure(sessions: int, nodes: int, forwards: int) -> dict[str, float]:
    """Return the figures of so many sessions, all of which take part in every forward pass."""
    model = NextToken(sessions)
    engine = Engine(
        model,
        sequence_length=CAPACITY - nodes,
        max_tree_nodes=nodes,
        vocabulary=VOCABULARY,
        times=Times({(sessions, width): 0.03 for width in (1, nodes)}, measured=True),
    )
    engine.listeners.append(ModelObserver(Metrics(), "target").count)  # as a server does
    clients = [Client(engine, number) for number in range(sessions)]
    messages, passes, stopped = list[float](), list[float](), threading.Event()
    last = len(model.between) + 2 * forwards

    def refill() -> None:
        for client in clients:
            messages.extend(client.refill())
        if len(model.between) == last:
            stopped.set()

    refill()
    model.meanwhile, collections = refill, garbage_collections()
    for _ in range(forwards):
        began = time.thread_time()
        assert engine.step(), "all sessions can continue"
        passes.append(time.thread_time() - began - model.inside[-1])
    engine.run(stopped)
    waits = model.between[1 - forwards :]
    figures = {"forward pass, ms": passes, "device waits, ms": waits, "message, ms": messages}
    return {
        "sessions": sessions,
        **{name: 1e3 * statistics.median(seconds) for name, seconds in figures.items()},
        "garbage collections": garbage_collections() - collections,
    }


def garbage_collections() -> int:
    """Return how often Python has collected garbage."""
    return sum(generation["collections"] for generation in gc.get_stats())


class Options(Flags):
    sessions: Counts = (1, 8, 64)
    nodes: int = 16
    """of a session in one forward pass"""
    forwards: int = 100
    json_file: JsonFile = None
    collect_often: bool = False
    """keep Python's settings for collecting garbage, which a target changes"""


def main(given: Options) -> None:
    if not given.collect_often:
        collect_rarely()
    rows = [measure(count, given.nodes, given.forwards) for count in given.sessions]
    lines = [[f"{value:.3g}" for value in row.values()] for row in rows]
    print(*table_lines(list(rows[0]), lines), sep="\n")
    write_json(given.json_file, rows)


if __name__ == "__main__":
    run(Options, main)
