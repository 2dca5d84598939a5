"""Makes the bundled profiles of Llama-3.1-8B on a trn1.2xlarge and a trn2.3xlarge: what the shipped
graphs take by compile/ops, and that as passes were published: scaled to the one pass of trn1, and
with the constants of trn2's.

    python -m benchmarks.time_profiles --out inference/data/profiles

They are to be written anew whenever a graph changes what it takes.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.harness import Flags, Folder, run
from compile.ops.pass_time import FITTED, PUBLISHED, RATES, Fitted, PassTime, pass_work
from compile.spec import CompileSpec, prefill_bucket, verify_bucket
from inference.backends.timed import TimeProfile
from inference.model.config import read_config

SHAPES = Path(__file__).parents[1] / "docs/shapes/llama-3.1-8b"
MEASURED_PASS = 0.03671
"""Seconds of one token, as choral-spec publishes it: 27.24 tokens/s."""

_CAPACITY, _FEW, _MANY = 4160, 64, 4160  # slots of the cache, and that graphs read
_TREE, _CHUNK = 64, 256
_SIZES = "Sizes that calls are padded to are those of a plausible artefact, not of a built one."
_RANKS = {"trn1": 2, "trn2": 4}
_COMPUTED = (
    "Computed, not yet run on hardware: python -m benchmarks.time_profiles, from the operations of "
    "the greedy graphs of one row and documented rates of a NeuronCore (compile/ops)."
)
_ASSUMES = (
    "That values between operations stay in the core, and that only the stream of weights, keys "
    "and values hides arithmetic. Rows cost alike. Sampled graphs take longer: python -m "
    "compile times. "
) + _SIZES
_PUBLISHED = (
    "Computed from the operations of the greedy graphs of one row (python -m "
    "benchmarks.time_profiles), with three constants that make a pass of Llama-3.1-8B 25.6 ms for "
    "one token and 26.2 for four, and one of Qwen3-4B 24.7: what AWS publishes of vLLM-Neuron on a "
    "trn2.3xlarge, TP4, bfloat16. Outrider has not yet run on this hardware."
)
_PUBLISHED_ASSUMES = (
    "That every node of every row costs 0.2 ms, as the second to fourth of one row do. AWS's own "
    "drafts for four users cost 1.2 ms a node (8B) and 2.3 (4B), calls of the draft included. "
) + _SIZES
_MEASURED = (
    "pass_seconds and serial_seconds: together 36.7 ms, from the 27.24 tokens/s that choral-spec "
    "publishes for Llama-3.1-8B alone, one sequence, on a trn1.2xlarge. Theirs, with another "
    "runtime, and a throughput: what the loop around a forward took is in it. Outrider has not yet "
    "run on this hardware."
)


def time_of(target: str, fitted: Fitted, nodes: int, slots: int) -> PassTime:
    """The time of a greedy graph of one row: of a tree, or of a prompt's chunk."""
    largest, ranks = verify_bucket(1, _TREE, _CAPACITY, _CAPACITY, sampled=False), _RANKS[target]
    spec = CompileSpec("8b", target, 128_256, (largest,), 1, 4096, _TREE, "bfloat16", ranks)
    bucket = (
        prefill_bucket(1, nodes, slots, _CAPACITY)
        if nodes > _TREE
        else verify_bucket(1, nodes, slots, _CAPACITY, sampled=False)
    )
    return pass_work(read_config(SHAPES), spec, bucket).milliseconds(RATES[target], fitted)


def computed(
    instance: str, fitted: Fitted = FITTED, source: str = _COMPUTED, assumes: str = _ASSUMES
) -> TimeProfile:
    """The profile whose times are those of a few graphs, and on straight lines between them."""
    target = instance.partition(".")[0]
    corners = {
        (nodes, slots): time_of(target, fitted, nodes, slots)
        for nodes in (1, _TREE, _CHUNK)
        for slots in (_FEW, _MANY)
    }
    few, many = corners[1, _FEW], corners[1, _MANY]
    slot = (many.costs["KV"] - few.costs["KV"]) / (_MANY - _FEW)
    serial, serial_slot = _line(_serial(few), _serial(many))
    wide, wide_slot = _line(*(_serial(corners[_TREE, slots]) for slots in (_FEW, _MANY)))
    product, product_slot = _line(*(corners[_CHUNK, slots].products for slots in (_FEW, _MANY)))
    node, node_slot = (wide - serial) / (_TREE - 1), (wide_slot - serial_slot) / (_TREE - 1)
    return TimeProfile(
        f"llama-3.1-8b-{instance}-{'computed' if fitted == FITTED else 'published'}",
        source,
        assumes,
        pass_seconds=_seconds(few.costs["weights"]),
        slot_seconds=_seconds(slot),
        node_seconds=_seconds(product / _CHUNK),
        node_slot_seconds=_seconds(product_slot / _CHUNK),
        rows=(1, 4, 8, 16, 32, 64),
        nodes=(1, 8, 16, 32, 64, 256),
        slot_step=256,
        serial_seconds=_seconds(serial - node),
        serial_slot_seconds=_seconds(serial_slot - node_slot),
        serial_node_seconds=_seconds(node),
        serial_node_slot_seconds=_seconds(node_slot),
    )


def measured(base: TimeProfile) -> TimeProfile:
    """The computed profile, as much slower as the measured pass is."""
    times = MEASURED_PASS / base.seconds(1, 1, 0)
    assumes = (
        "Only one node of one row at a short context was measured. All figures are the computed "
        f"ones, slower by the same factor of {times:.3f}: how a real forward rises with rows, "
        "nodes and context is not known. "
    )
    name = base.name.replace("computed", "measured")
    return replace(base.slower(times), name=name, source=_MEASURED, assumes=assumes + _SIZES)


def _serial(time: PassTime) -> float:
    """Milliseconds that nothing hides."""
    return time.total - sum(time.costs[cost] for cost in ("weights", "KV", "matmuls"))


def _line(few: float, many: float) -> tuple[float, float]:
    """Milliseconds at no slot, and each slot's."""
    slope = (many - few) / (_MANY - _FEW)
    return few - slope * _FEW, slope


def _seconds(milliseconds: float) -> float:
    return max(milliseconds, 0.0) / 1e3


def _short(value: object) -> object:
    """A time with four digits, anything else as it is."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


class Options(Flags):
    out: Folder


def main(given: Options) -> None:
    base, trn2 = computed("trn1.2xlarge"), "trn2.3xlarge"
    published = computed(trn2, PUBLISHED["trn2"], _PUBLISHED, _PUBLISHED_ASSUMES)
    for profile in (base, measured(base), computed(trn2), published):
        fields = ",\n ".join(f'"{k}": {json.dumps(_short(v))}' for k, v in asdict(profile).items())
        file = given.out / f"{profile.name}.json"
        file.write_text(f"{{\n {fields}\n}}\n", encoding="utf-8")
        print(file)


if __name__ == "__main__":
    run(Options, main)
