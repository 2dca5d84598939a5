"""What a pass costs: the target by nodes and by rows, the draft by width, and what a text spends
outside both models.

    python -m benchmarks.forward [--target DIR --draft DIR] [--device cpu|cuda] [--dtype bfloat16]
    [--json FILE]

Median milliseconds; shapes are visited in turn (A B C A B C), so that a busy machine slows all of
them alike.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import command, heap, medians, show
from grpc_comm.client.connection import connect
from grpc_comm.server.server import BackgroundServer
from inference.backends import Model, Ranked, Segment
from inference.decode import TargetSession, decode
from inference.drafters.round_proposer import RoundProposer
from inference.engine.engine import Engine
from inference.engine.local_session import LocalSession
from inference.order import Decode, Pace
from inference.sampling import SamplingParams
from inference.tree import IntArray
from outrider.client.drafting import DEFAULT_TREE
from outrider.draft_methods import find_draft
from outrider.models.capacity import Capacity
from outrider.options.roles import FusedTargetRole
from outrider.target.target import load_target

NODES = (1, 2, 4, 8, 16, 32, 64)
ROWS, TREE = (1, 2, 4, 8), 16
"""Sessions in one forward, and nodes of each."""

CONTEXT = 256
SAMPLINGS = {
    "greedy": SamplingParams(),
    "temperature 1, top-p 0.9": SamplingParams(1.0, top_p=0.9),
    "temperature 1": SamplingParams(1.0),
}


class StopwatchModel:
    """A Model that adds up the seconds spent in another one, and counts its calls."""

    def __init__(self, model: Model) -> None:
        self._model, self.seconds, self.calls = model, 0.0, 0
        self.rows, self.capacity, self.max_nodes, self.copies_rows = (
            model.rows,
            model.capacity,
            model.max_nodes,
            model.copies_rows,
        )

    def choose(self, segments: Sequence[Segment]) -> list[IntArray]:
        self.calls += 1
        start = time.perf_counter()
        chosen = self._model.choose(segments)
        self.seconds += time.perf_counter() - start
        return chosen

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        return self._model.padded(rows, nodes)

    def copy_row(self, source: int, target: int, slots: int) -> None:
        self._model.copy_row(source, target, slots)

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        self.calls += 1
        start = time.perf_counter()
        ranked = self._model.rank(segments, k)
        self.seconds += time.perf_counter() - start
        return ranked


def outside_the_models(
    target: StopwatchModel,
    draft: StopwatchModel,
    session: TargetSession,
    prompt: list[int],
    tokens: int,
) -> dict[str, float]:
    """Milliseconds a synchronous round, and of these those that neither model took. The two work in
    turn, so that all else is outside of them.
    """
    proposer = RoundProposer(draft, DEFAULT_TREE, room=session.room)
    order = Decode(len(prompt) + tokens, pace=Pace.WAIT)
    made = decode(prompt, SamplingParams(), session, order, [proposer])
    steps = (step for step in made if step.tokens)
    for _ in range(3):
        next(steps)
    before, start, rounds = target.seconds + draft.seconds, time.perf_counter(), 0
    for _ in steps:
        rounds += 1
    wall = time.perf_counter() - start
    inside = target.seconds + draft.seconds - before
    session.close()
    return {
        "round_ms": round(wall / rounds * 1e3, 3),
        "outside_ms": round((wall - inside) / rounds * 1e3, 3),
        "rounds": rounds,
    }


def measure(options: FusedTargetRole, repetitions: int, tokens: int) -> dict[str, Any]:
    """All figures of a pair."""
    served = load_target(options)
    target = StopwatchModel(served.engine.model)
    engine = Engine(
        target,
        sequence_length=served.engine.sequence_length,
        max_tree_nodes=64,
        vocabulary=served.engine.vocabulary,
    )
    checkpoint = find_draft(options)
    spare = DEFAULT_TREE.most_ranked
    loaded = checkpoint.load(options, Capacity(1, engine.sequence_length, spare, 256)).model
    assert loaded is not None, "a checkpoint is a model"
    draft = StopwatchModel(loaded)
    prompt = checkpoint.tokenizer.encode("def read_lines(path):\n    lines = []\n")
    figures: dict[str, Any] = {
        "target": served.description.model,
        "draft": checkpoint.name,
        "device": served.description.device,
    }
    for name, params in SAMPLINGS.items():
        passes = {
            str(nodes): partial(target.choose, [heap(nodes, CONTEXT, params)]) for nodes in NODES
        }
        figures[f"target ms by nodes, {name}"] = medians(passes, repetitions)
    trees = [heap(TREE, CONTEXT, SamplingParams(), row) for row in range(max(ROWS))]
    batches = {str(rows): partial(target.choose, trees[:rows]) for rows in ROWS}
    figures[f"target ms by rows of {TREE} nodes"] = medians(batches, repetitions)
    widths = {
        str(nodes): partial(draft.rank, [heap(nodes, CONTEXT, SamplingParams())], 8)
        for nodes in NODES[:5]
    }
    figures["draft ms by width"] = medians(widths, repetitions)
    figures["round in process"] = outside_the_models(
        target, draft, LocalSession(engine), prompt, tokens
    )
    with (
        BackgroundServer(replace(served, engine=engine)) as server,
        connect(str(server.address)) as connection,
    ):
        figures["round over loopback gRPC"] = outside_the_models(
            target, draft, connection.session(), prompt, tokens
        )
    return figures


def main() -> None:
    parser = command(__doc__)
    parser.add_argument("--target", metavar="DIR", help="default: the embedded target")
    parser.add_argument("--draft", metavar="DIR", help="default: the embedded draft")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    options = FusedTargetRole(
        target_model=given.target,
        draft_model=given.draft,
        device=given.device,
        dtype=given.dtype,
        threads=given.threads,
        batch=max(ROWS),
    )
    show(measure(options, given.repetitions, given.tokens), given.json)


if __name__ == "__main__":
    main()
