"""Padded work of planned graphs against powers of two, on three loads, at the computed times of
two devices. Nothing is run: work is counted.

    python -m benchmarks.buckets [--json FILE]        the table
    python -m benchmarks.buckets --write_loads        make benchmarks/loads/*.json anew

The loads are synthetic: seeded draws from log-normal lengths whose medians and spreads imitate
three uses, set by hand, not recorded from users. "All powers of two" has every power of two up to
the limits, however many graphs that makes; "best powers of two" is the planner's choice among these
sizes alone, within the same budget as "planned".
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import command, write_json
from compile.plan.buckets import Sizes, graphs_of, limits_of
from compile.plan.graph_time import call_cost
from compile.plan.search import BuildBudget, Cost, Plan, plan, serving
from compile.plan.workload import Calls, CallShape, Limits, Load, calls_of, read_load
from compile.spec import CompileSpec, least_nodes
from inference.model.config import ModelConfig, parse_config

LOADS = Path(__file__).parent / "loads"
BUDGETS = (8, 14, 24)
_SESSIONS = 200
_SEQUENCE_LENGTH, _TREE_NODES, _ROWS, _CHUNK = 2048, 64, 8, 256
LLAMA_8B: dict[str, Any] = {  # the shapes in Llama 3.1 8B's config.json
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}
_SMALL: dict[str, Any] = LLAMA_8B | {  # the shapes in SmolLM2 135M's config.json
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True)
class Imitated:
    """What a load imitates: median lengths, their spread (sigma of the logarithm), and how trees
    and sessions come.
    """

    what: str
    prompt: int
    prompt_spread: float
    output: int
    output_spread: float
    tree_sizes: Mapping[int, float]
    concurrent: Mapping[int, float]
    acceptance_length: float


IMITATED = {
    "chat": Imitated(
        "short chat turns with some history",
        180,
        0.9,
        160,
        0.7,
        {2: 0.1, 8: 0.3, 16: 0.5, 32: 0.1},
        {1: 0.5, 2: 0.3, 4: 0.2},
        2.6,
    ),
    "code": Imitated(
        "code editing: long files in, long copies out",
        900,
        0.5,
        350,
        0.6,
        {16: 0.4, 32: 0.3, 64: 0.3},
        {1: 0.8, 2: 0.2},
        4.0,
    ),
    "batch": Imitated(
        "summaries of documents, many at once",
        1300,
        0.25,
        110,
        0.3,
        {4: 0.5, 8: 0.5},
        {4: 0.2, 6: 0.3, 8: 0.5},
        2.0,
    ),
}


@dataclass(frozen=True)
class Row:
    """One line of the table. padding: work added to that of the calls without padding.  floor:
    no choice of these sizes has less.
    """

    target: str
    load: str
    graphs_from: str
    graphs: int
    padding: float
    floor: float | None
    seconds: float  # that planning took


def expected_cost(shapes: Sequence[CallShape], calls: Calls, cost: Cost) -> float:
    """Cost of the mean session when every call runs on the cheapest of `shapes` that serves it."""
    return sum(weight * cost(serving(shapes, call, cost)) for call, weight in calls.items())


def powers_of_two(limits: Limits) -> list[CallShape]:
    """The common choice: all powers of two up to the limits, and the limits."""
    shapes: list[CallShape] = []
    for largest in limits.required()[:2]:
        axes = [
            [
                *(1 << exponent for exponent in range(most.bit_length()) if 1 << exponent < most),
                most,
            ]
            for most in largest[1:]
        ]
        axes[2] = [slots for slots in axes[2] if slots >= min(64, largest.slots)]
        axes[1] = [nodes for nodes in axes[1] if nodes >= limits.least_nodes]
        shapes += [CallShape(largest.prefill, *sizes) for sizes in product(*axes)]
    return shapes


def imitate(name: str, seed: int = 0) -> Load:
    """A load of _SESSIONS sessions drawn from IMITATED."""
    source, draw = IMITATED[name], np.random.default_rng([seed, *name.encode()])
    prompts = np.exp(draw.normal(np.log(source.prompt), source.prompt_spread, _SESSIONS))
    outputs = np.exp(draw.normal(np.log(source.output), source.output_spread, _SESSIONS))
    sessions = tuple(
        (max(2, int(prompt)), max(1, int(output)))
        for prompt, output in zip(prompts, outputs, strict=True)
    )
    what = (
        f"synthetic, imitates {source.what}: python -m benchmarks.buckets --write_loads, seed "
        f"{seed}"
    )
    return Load(what, sessions, source.tree_sizes, source.concurrent, source.acceptance_length)


def write_loads() -> None:
    """One JSON file a load."""
    LOADS.mkdir(exist_ok=True)
    for name in IMITATED:
        (LOADS / f"{name}.json").write_text(
            json.dumps(asdict(imitate(name))) + "\n", encoding="utf-8"
        )


def compare(name: str, spec: CompileSpec, config: ModelConfig) -> Iterator[Row]:
    """The choices for one load on one device."""
    limits, cost = limits_of(spec, _CHUNK), call_cost(config, spec)
    calls, powers = calls_of(read_load(LOADS / f"{name}.json"), limits), powers_of_two(limits)
    graphs = sum(BuildBudget(0).count(shape) for shape in powers)
    exact = sum(weight * cost(call) for call, weight in calls.items())
    yield Row(
        spec.target,
        name,
        "all powers of two",
        graphs,
        expected_cost(powers, calls, cost) / exact - 1,
        None,
        0.0,
    )
    for budget in BUDGETS:
        yield _planned(name, spec, calls, limits, cost, BuildBudget(budget), None)
        yield _planned(name, spec, calls, limits, cost, BuildBudget(budget), powers)


def specs() -> Iterator[tuple[CompileSpec, ModelConfig]]:
    """An 8B model on trn1.2xlarge, and a 135M model on a CPU."""
    for target, ranks, raw in (("trn1", 2, LLAMA_8B), ("cpu", 1, _SMALL)):
        dtype = "float32" if target == "cpu" else "bfloat16"
        limits = Limits(_ROWS, _CHUNK, _TREE_NODES, least_nodes(dtype), _SEQUENCE_LENGTH)
        buckets = graphs_of(Sizes(), limits)
        config = parse_config(raw)
        yield (
            CompileSpec(
                "shapes only",
                target,
                config.vocab_size,
                buckets,
                _ROWS,
                _SEQUENCE_LENGTH,
                _TREE_NODES,
                dtype,
                ranks,
            ),
            config,
        )


def _planned(
    name: str,
    spec: CompileSpec,
    calls: Calls,
    limits: Limits,
    cost: Cost,
    budget: BuildBudget,
    sizes: Sequence[Any] | None,
) -> Row:
    start = time.perf_counter()
    chosen: Plan = plan(calls, limits, cost, budget, sizes)
    seconds = time.perf_counter() - start
    graphs = sum(budget.count(shape) for shape in chosen.shapes)
    return Row(
        spec.target,
        name,
        "planned" if sizes is None else "best powers of two",
        graphs,
        chosen.padding,
        chosen.bound / chosen.exact - 1,
        seconds,
    )


def _table(rows: Sequence[Row]) -> Iterator[str]:
    yield (
        f"{'device':<8}{'load':<8}{'graphs from':<20}{'graphs':>7}{'padding':>10}"
        f"{'at least':>10}{'planning s':>12}"
    )
    for row in rows:
        floor = "" if row.floor is None else f"{row.floor:.1%}"
        yield (
            f"{row.target:<8}{row.load:<8}{row.graphs_from:<20}{row.graphs:>7}{row.padding:>10.1%}"
            f"{floor:>10}{row.seconds:>12.1f}"
        )


def main() -> None:
    parser = command(__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--write_loads", action="store_true")
    arguments = parser.parse_args()
    if arguments.write_loads:
        write_loads()
        return
    rows = [
        row for spec, config in specs() for name in IMITATED for row in compare(name, spec, config)
    ]
    print(*_table(rows), sep="\n")
    write_json(arguments.json, [asdict(row) for row in rows])


if __name__ == "__main__":
    main()
