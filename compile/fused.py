"""The draft that is built into a target's graphs: which model, which tree, and the graphs that
this adds.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import inference
from compile.graphs import Sizes, samplings_of, slots_of
from compile.load import Limits
from compile.options import Options
from inference.artifact import DraftBucket, FusedPart, RoundBucket
from inference.errors import InvalidRequest, Mismatch
from inference.model.config import read_config, read_raw_config
from inference.tree_shape import Branches

CHAIN = 4
"""Drafted tokens of a round, unless told otherwise."""

_EMBEDDED = Path(inference.__file__).parent / "data" / "draft"


def draft_directory(options: Options) -> Path:
    """--draft_model, or the draft that ships here with the target that does."""
    if options.draft_model is None:
        if options.model is not None:
            raise InvalidRequest(
                f"--fused needs --draft_model: the draft that is to stand beside {options.model}, "
                "with the same tokenizer"
            )
        return _EMBEDDED
    from inference.model.checkpoint import find_model

    return find_model(options.draft_model, weights=not options.dry_run)


def shape_of(options: Options) -> Branches:
    """The tree of every round: --draft_tree, or a chain of --speculation_length."""
    if options.draft_tree is None:
        length = CHAIN if options.speculation_length is None else options.speculation_length
        if length < 1:
            raise InvalidRequest(
                f"--speculation_length {length}: a round drafts one token at least"
            )
        return Branches.chain(length)
    if options.speculation_length is not None:
        raise InvalidRequest(
            "--draft_tree says how deep the tree is: leave out --speculation_length"
        )
    try:
        return Branches(tuple(int(part) for part in options.draft_tree.split(",")))
    except ValueError as error:
        raise InvalidRequest(
            f"--draft_tree {options.draft_tree}: children of a node on each level are needed, such "
            "as 3,2,1"
        ) from error


def fused_part(options: Options, limits: Limits, sizes: Sizes, target: Path) -> FusedPart | None:
    """What --fused adds; None without it. Rounds read as much of the caches as the target's own
    graphs do, for one text and for all rows.

    Raises Mismatch when the tokenizers differ; a dry run reads the draft's config.json alone.
    """
    if not options.fused:
        _check_unfused(options)
        return None
    if options.trace:
        raise InvalidRequest("--trace makes one graph, of the target: leave it out for --fused")
    directory, shape, capacity = draft_directory(options), shape_of(options), limits.capacity
    positions = read_config(directory).max_positions
    if limits.sequence_length > positions:
        raise InvalidRequest(
            f"--sequence_length {limits.sequence_length}: the draft takes {positions} tokens at "
            "most"
        )
    counts = {limits.rows} if limits.all_rows else {1, limits.rows}
    rounds = product(sorted(counts), slots_of(sizes, capacity), samplings_of(sizes.sampling))
    chunk = max(limits.chunk, 1 + shape.inner)
    return FusedPart(
        model=options.draft_model or "outrider-embedded-draft",
        fingerprint="" if options.dry_run else _fingerprint(directory, target),
        config=read_raw_config(directory),
        prefill=(
            DraftBucket(
                limits.rows if limits.all_rows else 1, chunk, capacity, 1, 1, False, capacity
            ),
        ),
        rounds=tuple(
            RoundBucket.of(shape, rows, slots, capacity, sampled=sampled)
            for rows, slots, sampled in rounds
        ),
    )


def _check_unfused(options: Options) -> None:
    for name in ("draft_model", "speculation_length", "draft_tree"):
        if getattr(options, name) is not None:
            raise InvalidRequest(
                f"--{name} is of the draft beside the target: it goes with --fused"
            )


def _fingerprint(draft: Path, target: Path) -> str:
    """Of a draft that writes the target's tokens."""
    from inference.model.checkpoint import fingerprint
    from inference.text import Tokenizer

    ours, theirs = Tokenizer(target).fingerprint(), Tokenizer(draft).fingerprint()
    if ours != theirs:
        raise Mismatch(
            f"the tokenizers differ: that of the draft {draft} is {theirs}, that of the target "
            f"{target} is {ours}"
        )
    return fingerprint(draft)
