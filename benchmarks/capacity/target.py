"""The target as a process of its own: `python -m benchmarks.capacity.target CURVE --slower 5`.

It says on stdout where it listens, and serves until a signal, or the end of stdin. For every line
on stdin it says what it has done so far and what it holds. All are lines of JSON.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.capacity.script import VOCABULARY, ScriptedTarget
from benchmarks.harness import command
from grpc_comm.security import PLAINTEXT, SecurityOptions
from grpc_comm.server.server import Target, serve
from grpc_comm.translate import Description
from grpc_comm.transport import Address
from inference.backends import Segment
from inference.backends.timed import TimedModel, TimeProfile, find_profile
from inference.command import run_command
from inference.engine.engine import Engine
from inference.planner.profiling import emulated_target
from inference.times import LatencyModel
from inference.tree import IntArray

NODES = 64
"""Of one session in a forward, the root included."""

CHUNK = 256
"""Tokens of a prompt in one call."""

_SIZES = (1, 2, 4, 8, 16, 32, 64)


def cpu_like(name: str, source: str, fixed: float, node: float) -> TimeProfile:
    """A machine on which the first few nodes hide behind the weights, and all others cost alike."""
    assumes = "Keys and values cost nothing beside the weights and the arithmetic."
    sizes = (*_SIZES, 128, 256)
    return TimeProfile(name, source, assumes, fixed, 0.0, node, 0.0, _SIZES, sizes, 256)


CURVES = {
    "neuron": find_profile("llama-3.1-8b-trn1.2xlarge-measured"),
    "cpu": cpu_like(
        "Qwen2.5-Coder 1.5B in int8, two threads",
        "126 ms a forward of one node and 521 ms of 64 (docs/compile-cpu.md)",
        0.126,
        0.00814,
    ),
    "steep": cpu_like(
        "a CPU in float32", "made up: two tokens take twice as long as one", 0.02, 0.02
    ),
}


class CountedModel(TimedModel):
    """A TimedModel that counts what it decodes. decoding: forwards that chose a token.  rows,
    nodes: in these, as padded; nodes of all rows.
    """

    decoding = rows_decoded = nodes_decoded = 0

    def choose(self, segments: Sequence[Segment]) -> list[IntArray]:
        answer = super().choose(segments)
        if segments[0].pick.size and len(segments[0].pick) == len(segments[0].tokens):
            rows, nodes = self.padded(len(segments), max(len(one.tokens) for one in segments))
            self.decoding += 1
            self.rows_decoded += len(segments)
            self.nodes_decoded += rows * nodes
        return answer


def tell(model: CountedModel) -> dict[str, float]:
    """What the process has done so far. late: seconds beyond the emulated ones."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "at": time.monotonic(),
        "cpu": time.process_time(),
        "rss_mib": pages * resource.getpagesize() / 2**20,
        "forwards": model.forwards,
        "decoding": model.decoding,
        "rows": model.rows_decoded,
        "nodes": model.nodes_decoded,
        "late": model.late_seconds,
        "emulated": model.emulated_seconds,
    }


def main() -> int:
    parser = command(__doc__)
    parser.add_argument("curve", choices=CURVES)
    parser.add_argument("--slower", type=float, default=1.0, metavar="TIMES")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--length", type=int, default=1024, help="of a text, prompt included")
    parser.add_argument("--keys_file", type=Path)
    given = parser.parse_args()
    profile = CURVES[given.curve].slower(given.slower)
    model = CountedModel(ScriptedTarget(given.rows, given.length + NODES, CHUNK), profile)
    times = emulated_target(profile, given.rows, NODES)
    engine = Engine(
        model,
        sequence_length=given.length,
        max_tree_nodes=NODES,
        vocabulary=VOCABULARY,
        waiting=256,
        times=LatencyModel(times, measured=True),
    )
    description = Description(
        server_version="",
        model="scripted",
        model_fingerprint="scripted",
        tokenizer_fingerprint="scripted",
        vocabulary=VOCABULARY,
        sequence_length=given.length,
        max_tree_nodes=NODES,
        rows=given.rows,
        dtype="float32",
        device=profile.label("a script"),
        stop_ids=frozenset(),
        times=tuple(times.items()),
    )

    def answer(address: Address) -> None:
        print(json.dumps(str(address)), flush=True)
        for _ in sys.stdin:
            print(json.dumps(tell(model)), flush=True)
        os.kill(os.getpid(), signal.SIGTERM)  # whoever asked is gone

    security = SecurityOptions(keys_file=given.keys_file) if given.keys_file else PLAINTEXT
    serve(
        Target(engine, description, Address("127.0.0.1", 0), security=security),
        lambda address: threading.Thread(target=answer, args=(address,), daemon=True).start(),
    )
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main, debug=False))
