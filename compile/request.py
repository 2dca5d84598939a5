"""Makes a spec from options: the checkpoint, defaults for what was left open, and the graphs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import inference
from compile.options import CompileOptions
from compile.plan.buckets import (
    CHUNK,
    Sizes,
    buckets_of,
    explain,
    graphs_of,
    plan_graphs,
    samplings_of,
)
from compile.plan.device import device_of
from compile.plan.draft import fused_part
from compile.plan.memory import check_fits, footprint
from compile.plan.search import BuildBudget
from compile.plan.workload import Limits, read_load
from compile.spec import CompileSpec, check_positive, least_nodes
from inference.errors import InvalidRequest
from inference.model.config import ModelConfig, read_config

_EMBEDDED = Path(inference.__file__).parent / "data" / "target"
_DEFAULT_SEQUENCE_LENGTH = 2048
_ROWS = (4, 2, 1)
"""Row counts that are tried where none is given. More sessions than that want --load."""
_FILLED = 0.75
"""Share of a rank's memory that weights, caches and the largest activation may fill where the rows
are chosen. The rest is for the programs of all graphs and for what compilers keep besides.
"""


@dataclass(frozen=True)
class BuildCheckpoint:
    """The model to build."""

    name: str  # what it is known as
    directory: Path
    config: ModelConfig
    vocabulary: int  # ids are below this


@dataclass(frozen=True)
class BuildRequest:
    """A spec and, where its graphs were planned, why these graphs."""

    spec: CompileSpec
    explanation: tuple[str, ...]


def find_checkpoint(options: CompileOptions) -> BuildCheckpoint:
    """The checkpoint of --model. A dry run reads its config.json alone, so it counts ids that pad
    the vocabulary, too.
    """
    directory = _directory(options)
    config = read_config(directory)
    return BuildCheckpoint(
        options.model or "outrider-embedded-target",
        directory,
        config,
        config.vocab_size if options.dry_run else _vocabulary(directory),
    )


def _vocabulary(directory: Path) -> int:
    from inference.text import Tokenizer

    return Tokenizer(directory).vocabulary


def make_request(options: CompileOptions, checkpoint: BuildCheckpoint) -> BuildRequest:
    """What is to be built. The graphs are those of the given sizes, or planned for --load.

    Where --rows was not given, the most of a few row counts that fit are taken.
    """
    sizes = Sizes(
        options.sizes("prefill_nodes"),
        options.sizes("tree_nodes"),
        options.sizes("slots"),
        options.sampling,
    )
    for rows in _ROWS if options.rows is None else (options.rows,):
        limits = _limits(options, checkpoint, sizes, rows)
        spec = _spec(options, checkpoint, sizes, limits)
        if _leaves_room(checkpoint.config, spec):
            break
    if options.load is None:
        return BuildRequest(spec, ())
    if sizes.trees or sizes.slots:
        raise InvalidRequest("--load chooses the sizes: leave out --tree_nodes and --slots")
    check_fits(checkpoint.config, spec)
    budget = _budget(options)
    load = read_load(Path(options.load))
    planned = plan_graphs(load, checkpoint.config, spec, budget, limits.chunk)
    buckets = buckets_of(planned.plan.shapes, limits, options.sampling)
    return BuildRequest(replace(spec, buckets=buckets), (*explain(planned, budget), ""))


def _spec(
    options: CompileOptions, checkpoint: BuildCheckpoint, sizes: Sizes, limits: Limits
) -> CompileSpec:
    """The spec with graphs of the given sizes, or the default ones."""
    return CompileSpec(
        model=checkpoint.name,
        target=options.device,
        vocabulary=checkpoint.vocabulary,
        buckets=graphs_of(sizes, limits),
        rows=limits.rows,
        sequence_length=limits.sequence_length,
        max_tree_nodes=options.max_tree_nodes,
        dtype=options.precision,
        tensor_parallel=options.tensor_parallel,
        compiler_flags=options.compiler_flags,
        fused=fused_part(options, limits, sizes, checkpoint.directory),
    )


def _leaves_room(config: ModelConfig, spec: CompileSpec) -> bool:
    """Whether the spec leaves the share of a rank's memory that programs and buffers need."""
    return footprint(config, spec).total <= _FILLED * device_of(spec.target).memory


def _directory(options: CompileOptions) -> Path:
    if options.model is None:
        return _EMBEDDED
    if Path(options.model).is_dir():
        return Path(options.model)
    from inference.model.checkpoint import find_model

    return find_model(options.model, weights=not options.dry_run)


def _limits(
    options: CompileOptions, checkpoint: BuildCheckpoint, sizes: Sizes, rows: int
) -> Limits:
    length = _sequence_length(options, checkpoint)
    check_positive("rows", rows)
    for name in ("max_tree_nodes", "graphs"):
        check_positive(name, getattr(options, name))
    return Limits(
        rows,
        min(max(sizes.prefill or (CHUNK,)), length),
        options.max_tree_nodes,
        least_nodes(options.precision),
        length,
    )


def _sequence_length(options: CompileOptions, checkpoint: BuildCheckpoint) -> int:
    """The sequence length, prompt and output together. Raises InvalidRequest beyond the model's
    limit.
    """
    limit, asked = checkpoint.config.max_positions, options.sequence_length
    if asked is None:
        return min(_DEFAULT_SEQUENCE_LENGTH, limit)
    if not 2 <= asked <= limit:
        field = checkpoint.config.limited_by
        raise InvalidRequest(
            f"--sequence_length {asked}: {checkpoint.name} takes 2 to {limit} (config.json field "
            f"{field})"
        )
    return asked


def _budget(options: CompileOptions) -> BuildBudget:
    samplings = len(samplings_of(options.sampling))
    if options.compile_minutes is None:
        return BuildBudget(options.graphs, samplings=samplings)
    if options.graph_minutes is None:
        raise InvalidRequest(
            "--compile_minutes needs --graph_minutes: what one graph takes, as an earlier build "
            "printed it"
        )
    seconds = options.graph_minutes * 60
    return BuildBudget(
        options.graphs,
        seconds=options.compile_minutes * 60,
        of=lambda shape: seconds,
        samplings=samplings,
    )
