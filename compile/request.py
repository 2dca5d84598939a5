"""Makes a spec from options: the checkpoint, defaults for what was left open, and the graphs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import inference
from compile.compile_options import CompileOptions
from compile.plan.buckets import (
    MOST_GRAPHS,
    Sizes,
    buckets_of,
    default_chunk,
    explain,
    graphs_of,
    plan_graphs,
    samplings_of,
)
from compile.plan.draft import fused_part
from compile.plan.feature_layers import feature_layers
from compile.plan.first_graphs import first_graphs
from compile.plan.fit import check_fits, fits, usual_ranks
from compile.plan.search import BuildBudget
from compile.plan.workload import Limits, read_load
from compile.spec import CompileSpec, least_nodes
from inference.artifact import Bucket
from inference.errors import InvalidRequest
from inference.model.config import ModelConfig, parse_config, read_config
from inference.model.hub import find_model, split_revision

_EMBEDDED = Path(inference.__file__).parent / "data" / "target"
_DEFAULT_SEQUENCE_LENGTH = 2048
_SMALL_VOCABULARY = 4096
"""Up to so many ids, the noise that a sampled graph makes at temperature 0, too, takes little. Such
a model is small, and a call of it short beside the time that another graph takes to build.
"""
_WINDOWS = 4
"""Parts of a Neuron target's cache that prompts read: a call takes long by the slots it reads."""
_ROWS = (4, 2, 1)
"""Row counts that are tried where none is given. More sessions than that want --load."""


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
    lacking: tuple[Bucket, ...] = ()  # graphs that --quick left out


def find_checkpoint(options: CompileOptions) -> BuildCheckpoint:
    """The checkpoint of --model. A dry run reads its config.json alone, so it counts ids that pad
    the vocabulary, too.
    """
    directory = _directory(options)
    config = read_config(directory)
    return BuildCheckpoint(
        split_revision(options.model or "outrider-embedded-target")[0],
        directory,
        config,
        config.vocab_size if options.dry_run else _vocabulary(directory),
    )


def _vocabulary(directory: Path) -> int:
    from inference.text import Tokenizer

    return Tokenizer(directory).vocabulary


def make_request(options: CompileOptions, checkpoint: BuildCheckpoint) -> BuildRequest:
    """What is to be built. The graphs are those of the given sizes, or planned for --load; with
    --quick, the first of them.

    Where --rows was not given, the most of a few row counts that fit are taken.
    """
    small = checkpoint.vocabulary <= _SMALL_VOCABULARY
    few = small or options.fused  # rounds are graphs, too
    sizes = Sizes(
        options.sizes("prompt_chunks"),
        options.sizes("tree_sizes"),
        options.sizes("slots"),
        options.sampling or ("sampled" if small else "both"),
        few,
        _WINDOWS if options.device != "cpu" and not few else 2,
        MOST_GRAPHS - _between(options),
    )
    for rows in _ROWS if options.rows is None else (options.rows,):
        limits = _limits(options, checkpoint, sizes, rows)
        spec = _spec(options, checkpoint, sizes, limits)
        if options.rows is not None or fits(checkpoint.config, spec):
            break
    request = BuildRequest(spec, ())
    if options.load is not None:
        request = _planned(options, checkpoint, spec, limits, sizes.sampling)
    if not options.quick:
        return request
    first = first_graphs(request.spec, limits)
    lacking = tuple(graph for graph in request.spec.graphs if graph not in first.graphs)
    return BuildRequest(first, request.explanation, lacking)


def _between(options: CompileOptions) -> int:
    """Graphs that a Neuron target calls between the others: one copies rows, one makes noise."""
    return 0 if options.device == "cpu" else 2


def _spec(
    options: CompileOptions, checkpoint: BuildCheckpoint, sizes: Sizes, limits: Limits
) -> CompileSpec:
    """The spec with graphs of the given sizes, or the default ones."""
    fused = fused_part(options, limits, sizes, checkpoint.directory)
    models = [checkpoint.config, *([parse_config(fused.config)] if fused else [])]
    return CompileSpec(
        model=checkpoint.name,
        target=options.device,
        vocabulary=checkpoint.vocabulary,
        buckets=graphs_of(sizes, limits),
        rows=limits.rows,
        sequence_length=limits.sequence_length,
        max_tree_nodes=options.max_tree_nodes,
        dtype=options.precision,
        tensor_parallel=options.tensor_parallel or usual_ranks(models, options.device),
        compiler_flags=options.compiler_flags,
        fused=fused,
        features=feature_layers(options, checkpoint.config),
    )


def _planned(
    options: CompileOptions,
    checkpoint: BuildCheckpoint,
    spec: CompileSpec,
    limits: Limits,
    sampling: str,
) -> BuildRequest:
    """The spec with the graphs that serve --load best."""
    check_fits(checkpoint.config, spec)
    beside = len(spec.graphs) - len(spec.buckets) + _between(options)
    budget = _budget(options, sampling, options.graphs - beside)
    load = read_load(Path(options.load or ""))
    planned = plan_graphs(load, checkpoint.config, spec, budget, limits.chunk)
    buckets = buckets_of(planned.plan.shapes, limits, sampling)
    return BuildRequest(replace(spec, buckets=buckets), (*explain(planned, budget, beside), ""))


def _directory(options: CompileOptions) -> Path:
    if options.model is None:
        return _EMBEDDED
    if Path(options.model).is_dir():
        return Path(options.model)
    return find_model(options.model, weights=not options.dry_run)


def _limits(
    options: CompileOptions, checkpoint: BuildCheckpoint, sizes: Sizes, rows: int
) -> Limits:
    length = _sequence_length(options, checkpoint)
    return Limits(
        rows,
        min(max(sizes.prefill or (default_chunk(options.device),)), length),
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


def _budget(options: CompileOptions, sampling: str, graphs: int) -> BuildBudget:
    samplings = len(samplings_of(sampling))
    if options.compile_minutes is None or options.graph_minutes is None:
        return BuildBudget(graphs, samplings=samplings)
    seconds = options.graph_minutes * 60
    return BuildBudget(
        graphs,
        seconds=options.compile_minutes * 60,
        of=lambda shape: seconds,
        samplings=samplings,
    )
