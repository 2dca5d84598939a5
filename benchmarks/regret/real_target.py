"""The study's target as a process of its own: real gRPC, and forwards that really take what a
profile says.

    python -m benchmarks.regret.real_target --temperature 0 --level mid --slower 2

It says where it listens and serves until a signal. It makes the study's texts before, so that it
remembers what the target says along them.
"""

from __future__ import annotations

import sys

import torch

from benchmarks.harness import command
from benchmarks.regret.dial import NAMED
from benchmarks.regret.stage import PROFILES, hosted, serve
from benchmarks.regret.study import TEMPERATURES, Cell, embedded_study
from benchmarks.regret.texts import PROMPTS, TOKENS
from grpc_comm.server.server import Target
from grpc_comm.server.server import serve as serve_target
from grpc_comm.translate import Description
from grpc_comm.transport import Address
from inference.backends.timed import TimedModel
from inference.command import run_command
from inference.engine.engine import Engine
from outrider.target.target import READY


def describe(engine: Engine, times: dict[tuple[int, int], float]) -> Description:
    """What the study's target says of itself."""
    return Description(
        server_version="",
        model="embedded target",
        model_fingerprint="embedded",
        tokenizer_fingerprint="embedded",
        vocabulary=engine.vocabulary,
        sequence_length=engine.sequence_length,
        max_tree_nodes=engine.max_tree_nodes,
        rows=engine.model.rows,
        dtype="float32",
        device=PROFILES.target.label("the embedded target"),
        stop_ids=frozenset(),
        times=tuple(times.items()),
    )


def main() -> int:
    parser = command(__doc__)
    parser.add_argument("--level", choices=sorted(NAMED), default="mid", help="of the draft beside")
    parser.add_argument("--temperature", type=float, choices=TEMPERATURES, default=0.0)
    parser.add_argument("--texts", type=int, default=1, help="of the main ones, made before")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of each text")
    parser.add_argument(
        "--slower",
        type=float,
        default=1.0,
        metavar="TIMES",
        help="emulated times are so much longer",
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    study = embedded_study(PROMPTS[: given.texts], given.tokens)
    pair = study.pair(Cell(0, given.level, given.temperature))
    profiles = PROFILES.slower(given.slower)
    times = profiles.times
    beside = TimedModel(pair.draft(), profiles.beside)
    target = TimedModel(pair.target(), profiles.target)
    engine = serve(target, pair.vocabulary, times=times.target, drafter=hosted(beside, times))
    serve_target(
        Target(engine, describe(engine, dict(times.target)), Address("127.0.0.1", 0)),
        lambda address: print(f"{READY}{address}", file=sys.stderr, flush=True),
    )
    print(target.account(), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main, debug=False))
