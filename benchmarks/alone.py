"""What target-only keeps of the model's own speed: beside a bare loop that calls the model and does
nothing else, a session in the same process, and one over gRPC on loopback.

    python -m benchmarks.alone [--emulate PROFILE] [--model DIR] [--dtype bfloat16] [--turns 8]
    [--tokens 96] [--threads 1]

All ways call the same model in the same process, stretch by stretch in turn, so that a busy machine
slows all of them alike. A stretch counts from its first token on. Its speed is that of the bare
stretch of the same turn over its own: 1 is as fast. Without a model it is the embedded target.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from statistics import geometric_mean, median

import numpy as np

from benchmarks.harness import command, table_lines
from grpc_comm.client.connection import connect
from grpc_comm.server.server import BackgroundServer
from inference.backends import Model
from inference.backends.sequence import ModelSequence
from inference.command import run_command
from inference.decode import TargetSession, decode
from inference.engine.engine import Engine
from inference.engine.local_session import LocalSession
from inference.order import Decode
from inference.sampling import SamplingParams
from inference.tree import TokenTree
from outrider.options import PRECISIONS
from outrider.options.roles import TargetRole
from outrider.target.target import load_target

BARE = "bare loop"
PROMPT = tuple(range(3, 67))

Way = Callable[[int], Iterator[int]]
"""A stretch of so many tokens, some at a time: how many have come."""


def bare(model: Model, tokens: int) -> Iterator[int]:
    """A forward and a commit for each token, on a row of the model."""
    sequence, root = ModelSequence(model, 0, SamplingParams()), PROMPT[-1]
    sequence.extend(PROMPT[:-1])
    for _ in range(tokens):
        tree = TokenTree.chain([root])
        root = int(sequence.choose(tree)[0])
        sequence.commit(tree, [])
        yield 1


def served(session: TargetSession, tokens: int) -> Iterator[int]:
    """The same by a session without proposers."""
    with closing(session):
        for step in decode(PROMPT, SamplingParams(), session, Decode(len(PROMPT) + tokens)):
            if step.tokens:
                yield len(step.tokens)


def token_seconds(stretch: Iterator[int]) -> float:
    """Seconds a token, from the first ones on."""
    next(stretch)
    began, made = time.perf_counter(), sum(stretch)
    return (time.perf_counter() - began) / made


def measure(ways: dict[str, Way], turns: int, tokens: int) -> dict[str, list[float]]:
    """Seconds a token of every way, turn by turn; one turn more comes before, as a warm-up."""
    order, names = np.random.default_rng(0), list(ways)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(turns + 1):
        for index in order.permutation(len(names)):
            took = token_seconds(ways[names[index]](tokens))
            if turn:
                seconds[names[index]].append(took)
    return seconds


def table(seconds: dict[str, list[float]]) -> list[str]:
    """Markdown: medians, and speeds over the bare loop by pairs."""
    rows = list[list[str]]()
    for name, took in seconds.items():
        speeds = [alone / mine for alone, mine in zip(seconds[BARE], took, strict=True)]
        spread = f"{min(speeds):.3f}, {max(speeds):.3f}"
        rows.append([name, f"{1e3 * median(took):.2f}", f"{geometric_mean(speeds):.4f}", spread])
    speed = "speed over the bare loop, geometric mean"
    return table_lines(["way", "ms a token, median", speed, "least, most"], rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command(__doc__)
    parser.add_argument("--model", metavar="DIR", help="default: the embedded target")
    parser.add_argument("--dtype", choices=PRECISIONS)
    parser.add_argument("--emulate", metavar="PROFILE", help="each forward takes what this says")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96, help="of a stretch")
    given = parser.parse_args(arguments)
    target = load_target(
        TargetRole(
            target_model=given.model,
            dtype=given.dtype,
            emulate=given.emulate,
            measure_first=not given.emulate,
            threads=given.threads,
            batch=1,
            device="cpu",
        )
    )
    engine = target.engine
    inside = Engine(
        engine.model,
        sequence_length=engine.sequence_length,
        max_tree_nodes=engine.max_tree_nodes,
        vocabulary=engine.vocabulary,
    )
    with BackgroundServer(target) as server, connect(str(server.address)) as connection:
        ways: dict[str, Way] = {
            BARE: lambda tokens: bare(engine.model, tokens),
            "session in process": lambda tokens: served(LocalSession(inside), tokens),
            "session over gRPC": lambda tokens: served(connection.session(), tokens),
        }
        print(*table(measure(ways, given.turns, given.tokens)), sep="\n")
    print(f"{given.turns} turns of {given.tokens} tokens; load {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main, debug=False))
