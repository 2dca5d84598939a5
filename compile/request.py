"""Creates a spec from options: the checkpoint, default values, and the graphs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import inference
from compile.compile_options import CompileOptions
from compile.plan.buckets import MAX_GRAPHS, SAMPLED, GraphSizes, first_graphs, graphs_of
from compile.plan.fit import fits, usual_ranks
from compile.spec import CompileSpec, least_nodes, mask_words
from inference.errors import InvalidRequest, Mismatch
from inference.files.artifact import Bucket, DraftBucket, FusedPart, RoundBucket
from inference.model.checkpoints.config import (
    ModelConfig,
    allowed_length,
    read_config,
    read_raw_config,
)
from inference.model.checkpoints.hub import find_model, split_revision
from inference.model.choice.graph_choice import WINDOW
from inference.model.eagle_head import EAGLE3, named_layers, read_head_config

_EMBEDDED = Path(inference.__file__).parent / "data"
_NUMBERS = re.compile(r"[0-9]{1,9}(,[0-9]{1,9})*")
_CHUNK = 256
_NEURON_CHUNK = 512
"""Prompt tokens per call. On a Neuron target, each call reads all weights, even for few tokens."""
_SMALL_VOCABULARY = 4096
"""Up to this number of ids, a sampled graph's noise takes little time even at temperature 0. Such a
model is small: its calls are short compared with building another graph.
"""
_WINDOWS = 4
"""Number of a Neuron target's prompt graphs, which read different parts of the cache."""
_ROWS = (4, 2, 1)
"""Row counts that are tried if none is requested."""


@dataclass(frozen=True)
class BuildCheckpoint:
    """The model to build, and the draft to build into its graphs."""

    name: str  # for messages and the manifest
    directory: Path
    config: ModelConfig
    vocabulary: int  # ids are below this
    draft: Path | None = None


@dataclass(frozen=True)
class BuildRequest:
    """A spec and its checkpoints."""

    spec: CompileSpec
    checkpoint: BuildCheckpoint
    lacking: tuple[Bucket, ...] = ()  # graphs that --quick omitted


def find_checkpoint(options: CompileOptions) -> BuildCheckpoint:
    """Return the checkpoints of --model and --draft_model. A dry run only reads their config.json,
    so it also counts ids that pad the vocabulary.
    """
    directory = _directory(options.model, options, "target")
    config = read_config(directory)
    vocabulary = config.vocab_size
    if not options.dry_run:
        from inference.text.tokenizer import Tokenizer

        vocabulary = Tokenizer(directory).vocabulary
    return BuildCheckpoint(
        split_revision(options.model or "outrider-embedded-target")[0],
        directory,
        config,
        vocabulary,
        _directory(options.draft_model, options, "draft") if options.fused else None,
    )


def _directory(model: str | None, options: CompileOptions, embedded: str) -> Path:
    if model is None:
        return _EMBEDDED / embedded
    if Path(model).is_dir():
        return Path(model)
    return find_model(model, weights=not options.dry_run)


def make_request(options: CompileOptions, checkpoint: BuildCheckpoint) -> BuildRequest:
    """Return the request of a build, with graphs of the given sizes; with --quick, only the first
    ones.

    Without --batch, the greatest of a few row counts that fits is used.
    """
    ranks = _ranks(options, checkpoint)
    for rows in _ROWS if options.batch is None else (options.batch,):
        sizes = _sizes(options, checkpoint, ranks, rows)
        spec = _spec(options, checkpoint, sizes, ranks)
        if options.batch is not None or fits(checkpoint.config, spec):
            break
    if not options.quick:
        return BuildRequest(spec, checkpoint)
    first = first_graphs(spec, sizes)
    lacking = tuple(graph for graph in spec.graphs if graph not in first.graphs)
    return BuildRequest(first, checkpoint, lacking)


def _ranks(options: CompileOptions, checkpoint: BuildCheckpoint) -> int:
    """Return the number of ranks: as requested, or the most that the smallest instance allows."""
    drafts = [] if checkpoint.draft is None else [read_config(checkpoint.draft)]
    return options.tensor_parallel or usual_ranks([checkpoint.config, *drafts], options.device)


def _sizes(
    options: CompileOptions, checkpoint: BuildCheckpoint, ranks: int, rows: int
) -> GraphSizes:
    """Return the sizes of the graphs. A Neuron target has two more graphs: for copying rows and for
    noise.
    """
    config, cpu = checkpoint.config, options.device == "cpu"
    length = allowed_length(
        options.sequence_length, checkpoint.name, config.max_positions, config.limited_by
    )
    small = checkpoint.vocabulary <= _SMALL_VOCABULARY
    few = small or options.fused  # rounds also need graphs
    return GraphSizes(
        rows,
        min(_CHUNK if cpu else _NEURON_CHUNK, length),
        options.max_tree_nodes,
        least_nodes(options.precision),
        length,
        trees=options.tree_sizes,
        sampling=options.sampling or ("sampled" if small else "both"),
        words=mask_words(checkpoint.vocabulary, ranks) if options.masks else 0,
        few=few,
        windows=2 if cpu or few else _WINDOWS,
        max_graphs=MAX_GRAPHS if cpu else MAX_GRAPHS - 2,
    )


def _spec(
    options: CompileOptions, checkpoint: BuildCheckpoint, sizes: GraphSizes, ranks: int
) -> CompileSpec:
    fused = None
    if checkpoint.draft is not None:
        fused = _fused_part(options, sizes, checkpoint.directory, checkpoint.draft)
    return CompileSpec(
        model=checkpoint.name,
        target=options.device,
        vocabulary=checkpoint.vocabulary,
        buckets=graphs_of(sizes),
        rows=sizes.rows,
        sequence_length=sizes.sequence_length,
        max_tree_nodes=options.max_tree_nodes,
        dtype=options.precision,
        tensor_parallel=ranks,
        compiler_flags=options.compiler_flags,
        fused=fused,
        features=_feature_layers(options.features, checkpoint.config),
    )


def _fused_part(options: CompileOptions, sizes: GraphSizes, target: Path, draft: Path) -> FusedPart:
    """Return the draft's part of the spec, from both checkpoints. Raises Mismatch if the tokenizers
    differ.

    Rounds of one session read as much of the caches as the target's own trees do; rounds of all
    rows read all of them. A dry run only reads the draft's config.json.
    """
    shape, capacity = options.drafted, sizes.capacity
    if options.device != "cpu" and shape.depth >= WINDOW:
        raise InvalidRequest(
            f"a {shape} has depth {shape.depth}: a Neuron target supports at most {WINDOW - 1} "
            "drafted tokens in a row"
        )
    positions = read_config(draft).max_positions
    if sizes.sequence_length > positions:
        raise InvalidRequest(
            f"--sequence_length {sizes.sequence_length}: the draft takes {positions} tokens at most"
        )
    windows = {(1, slots) for slots in sizes.tree_slots} | {(sizes.rows, capacity)}
    rounds = product(sorted(windows), SAMPLED[sizes.sampling])
    chunk = max(sizes.chunk, 1 + shape.inner)
    return FusedPart(
        model=options.draft_model or "outrider-embedded-draft",
        fingerprint="" if options.dry_run else _fingerprint(draft, target),
        config=read_raw_config(draft),
        prefill=(DraftBucket(1, chunk, capacity, 1, 1, False, capacity),),
        rounds=tuple(
            RoundBucket.of(shape, rows, slots, capacity, sampled=sampled)
            for (rows, slots), sampled in rounds
        ),
    )


def _fingerprint(draft: Path, target: Path) -> str:
    """Return the draft's fingerprint. Raises Mismatch if its token ids differ from the target's."""
    from inference.model.checkpoints.weight_files import fingerprint
    from inference.text.tokenizer import Tokenizer

    reason = Tokenizer(draft).settings.disagreement(Tokenizer(target).settings)
    if reason:
        raise Mismatch(
            f"the tokenizers of the draft {draft} and of the target {target} differ: {reason}"
        )
    return fingerprint(draft)


def names_layers(features: str) -> bool:
    """Return whether --features selects layers itself instead of naming a head."""
    return features == EAGLE3 or _NUMBERS.fullmatch(features) is not None


def _feature_layers(features: str | None, config: ModelConfig) -> tuple[int, ...]:
    """Return the layers that --features selects, ascending; none without it.

    Raises InvalidRequest for a layer that the target does not have, and UnsupportedModel for a head
    that does not fit it.
    """
    if features is None:
        return ()
    if names_layers(features):
        return named_layers(features, config.layers)
    return read_head_config(find_model(features, weights=False), config).feature_layers
