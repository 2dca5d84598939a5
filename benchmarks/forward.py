"""Times of a pass: the target's by nodes and by rows, the draft's by width.

    python -m benchmarks.forward [--target DIR --draft DIR] [--dtype bfloat16]

Median milliseconds; shapes are visited in turn (A B C A B C), so that a busy machine slows all of
them alike.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.harness import Flags, JsonFile, heap, medians, run, show
from inference.flags.values import ModelName
from inference.sampling import SamplingParams
from outrider.draft_methods import find_draft
from outrider.models.sequence_length import Capacity
from outrider.options.groups import Precision
from outrider.options.roles import FusedTargetRole
from outrider.target.target import load_target

NODES = (1, 2, 4, 8, 16, 32, 64)
ROWS, TREE = (1, 2, 4, 8), 16
"""Sessions in one forward, and nodes of each."""

CONTEXT, SPARE = 256, 64
SAMPLINGS = {
    "greedy": SamplingParams(),
    "temperature 1, top-p 0.9": SamplingParams(1.0, top_p=0.9),
    "temperature 1": SamplingParams(1.0),
}


def measure(options: FusedTargetRole, repetitions: int) -> dict[str, Any]:
    """All figures of a pair."""
    served = load_target(options)
    target = served.engine.model
    checkpoint = find_draft(options)
    length = served.engine.sequence_length
    capacity = Capacity(rows=1, sequence_length=length, spare=SPARE, max_nodes=256)
    draft = checkpoint.load(options, capacity).model
    assert draft is not None, "a checkpoint is a model"
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
    return figures


class Options(Flags):
    target: ModelName | None = None
    """default: the embedded target"""
    draft: ModelName | None = None
    """default: the embedded draft"""
    device: str = "auto"
    dtype: Precision | None = None
    threads: int | None = None
    repetitions: int = 15
    json_file: JsonFile = None


def main(given: Options) -> None:
    options = FusedTargetRole(
        target_model=given.target,
        draft_model=given.draft,
        device=given.device,
        dtype=given.dtype,
        threads=given.threads,
        batch=max(ROWS),
    )
    show(measure(options, given.repetitions), given.json_file)


if __name__ == "__main__":
    run(Options, main)
