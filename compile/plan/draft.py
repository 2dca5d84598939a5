"""Plans the draft that is built into a target's graphs: its model, its tree, and the graphs it
adds.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import inference
from compile.compile_options import CompileOptions
from compile.plan.buckets import Sizes, samplings_of, tree_slots
from compile.plan.workload import Limits
from inference.artifact import DraftBucket, FusedPart, RoundBucket
from inference.errors import InvalidRequest, Mismatch
from inference.model.config import read_config, read_raw_config
from inference.model.noise_window import WINDOW

_EMBEDDED = Path(inference.__file__).parent / "data" / "draft"


def draft_directory(options: CompileOptions) -> Path:
    """The directory of --draft_model, or of the embedded draft where the target is the embedded
    one.
    """
    if options.draft_model is None:
        return _EMBEDDED
    from inference.model.hub import find_model

    return find_model(options.draft_model, weights=not options.dry_run)


def fused_part(
    options: CompileOptions, limits: Limits, sizes: Sizes, target: Path
) -> FusedPart | None:
    """What --fused adds; None without it. Raises Mismatch when the tokenizers differ.

    Rounds of one text read as much of the caches as the target's own trees do, rounds of all rows
    the whole.
    A dry run reads the draft's config.json alone.
    """
    if not options.fused:
        return None
    directory, shape, capacity = draft_directory(options), options.drafted, limits.capacity
    if options.device != "cpu" and shape.depth >= WINDOW:
        raise InvalidRequest(
            f"a {shape} is {shape.depth} deep: a Neuron target keeps the noise of {WINDOW} "
            f"positions, so that {WINDOW - 1} drafted tokens in a row are the most"
        )
    positions = read_config(directory).max_positions
    if limits.sequence_length > positions:
        raise InvalidRequest(
            f"--sequence_length {limits.sequence_length}: the draft takes {positions} tokens at "
            "most"
        )
    read = {(1, slots) for slots in tree_slots(sizes, limits)} | {(limits.rows, capacity)}
    rounds = product(sorted(read), samplings_of(sizes.sampling))
    chunk = max(limits.chunk, 1 + shape.inner)
    return FusedPart(
        model=options.draft_model or "outrider-embedded-draft",
        fingerprint="" if options.dry_run else _fingerprint(directory, target),
        config=read_raw_config(directory),
        prefill=(DraftBucket(1, chunk, capacity, 1, 1, False, capacity),),
        rounds=tuple(
            RoundBucket.of(shape, rows, slots, capacity, sampled=sampled)
            for (rows, slots), sampled in rounds
        ),
    )


def _fingerprint(draft: Path, target: Path) -> str:
    """The draft's fingerprint. Raises Mismatch where its tokenizer is not the target's."""
    from inference.model.checkpoint import fingerprint
    from inference.text import Tokenizer

    ours, theirs = Tokenizer(target).fingerprint(), Tokenizer(draft).fingerprint()
    if ours != theirs:
        raise Mismatch(
            f"the tokenizers differ: that of the draft {draft} is {theirs}, that of the target "
            f"{target} is {ours}"
        )
    return fingerprint(draft)
