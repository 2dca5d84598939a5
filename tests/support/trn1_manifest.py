"""The manifest of an artefact for trn1 that was never built."""

from __future__ import annotations

import json

from compile.compile_options import CompileOptions
from compile.request import find_checkpoint, make_request
from inference.artifact import Manifest

REQUEST = CompileOptions(target="trn1", tensor_parallel=2, dry_run=True)


def trn1_manifest() -> Manifest:
    """The embedded target's, for two cores, without files."""
    checkpoint = find_checkpoint(REQUEST)
    spec = make_request(REQUEST, checkpoint).spec
    return Manifest(
        target="trn1",
        model="embedded",
        model_fingerprint="",
        tokenizer_fingerprint="",
        vocabulary=spec.vocabulary,
        stop_ids=(),
        config=json.loads((checkpoint.directory / "config.json").read_text()),
        dtype=spec.dtype,
        tensor_parallel=spec.tensor_parallel,
        rows=spec.rows,
        capacity=spec.cache_slots,
        sequence_length=spec.sequence_length,
        max_tree_nodes=spec.max_tree_nodes,
        buckets=spec.buckets,
        compiler_flags={},
        versions={},
        host={},
        files={},
        command="",
        created="",
    )
