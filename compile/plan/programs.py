"""The cost of a Neuron target's programs: memory of the device beside the tensors, and time to
compile. Both follow from the instructions that compile/ops estimates; neither was measured here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from compile.ops.pass_time import pass_work
from compile.plan.device import device_of
from compile.plan.memory import graph_work
from compile.spec import CompileSpec
from inference.artifact import Bucket
from inference.model.config import ModelConfig

_INSTRUCTION = 64
"""Bytes. A published log of neuronx-cc 2.22 reports 317 KB of code for 5,067 instructions."""
_MICROCODE = 96 << 20
"""Bytes that the runtime takes of each physical core (AWS, neuron-runtime/explore/device-memory).
"""
_RUN, _DESCRIPTORS = 2048, 32
"""Bytes that are moved at once, and those of the two descriptors that say from where to where. The
first is assumed: tables in transformers-neuronx, issues 49 and 92, have 6.5 and 1.5 GiB of rings.
"""
_A_SECOND = 3500
"""Instructions that one compiler gets through. A published build of Llama-3.2-1B for one core of
trn1 took 45 s for the graph of one token, whose instructions are estimated at 160,000.
"""


def program_bytes(config: ModelConfig, spec: CompileSpec) -> int:
    """Bytes of a rank's programs and microcode. Graphs for prompts are all taken to be as long as
    the longest of them, and so are those for trees and for rounds. The small ones between calls
    are not counted.
    """
    kinds: defaultdict[object, list[Bucket]] = defaultdict(list)
    for bucket in spec.graphs:
        kinds[type(bucket), bucket.everywhere].append(bucket)
    graphs = 0
    for kind in kinds.values():
        longest = max(
            kind, key=lambda graph: (graph.rows * graph.nodes, graph.slots, graph.sampled)
        )
        graphs += len(kind) * pass_work(config, spec, longest).instructions
    microcode = device_of(spec.target).physical_cores * _MICROCODE
    return graphs * _INSTRUCTION + microcode


def ring_bytes(config: ModelConfig, spec: CompileSpec) -> int:
    """Bytes of the descriptors of what all graphs move on a rank."""
    moved = sum(graph_work(config, spec, bucket).moved for bucket in spec.graphs)
    return round(moved / _RUN * _DESCRIPTORS)


def compiling(counts: Sequence[int], at_once: int) -> Iterator[str]:
    """The lines of a plan about the time of compiling.

    counts: instructions of each graph; at_once: compilers that run at a time
    """
    each = [count / _A_SECOND / 60 for count in counts]
    together = max(max(each), sum(each) / at_once)
    yield (
        f"compiling: {_minutes(sum(each))} in all, {_minutes(max(each))} for the longest graph; "
        f"here, {at_once} at once, {_minutes(together)}"
    )
    yield (
        f"  at {_A_SECOND:,} instructions a second, from one published build of another model: "
        "within a factor of 3 at best"
    )


def _minutes(minutes: float) -> str:
    return f"about {minutes / 60:.1f} h" if minutes >= 90 else f"about {max(minutes, 1):.0f} min"
