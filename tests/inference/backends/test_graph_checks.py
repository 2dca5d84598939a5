"""What every compiled graph is checked for before it is written, on graphs that run eagerly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from compile.__main__ import main as compile_main
from compile.agreement import check_graph
from compile.round_check import check_independence
from compile.spec import mask_words, verify_bucket
from inference.backends.eager import EagerModel
from inference.backends.graphs.compiled import CompiledModel
from inference.errors import BadArtifact
from inference.files.artifact import Bucket
from inference.model.cache import FeatureForm, empty_cache
from inference.model.graphs.verify_graph import VerifyGraph
from inference.tree.tree_shape import Branches
from tests.support import beside
from tests.support.models import tiny_decoder
from tests.support.refusals import assert_refused

Parts = tuple[Tensor, ...]
WRONG: dict[str, Callable[..., Parts]] = {
    "keys differ": lambda *parts: tuple(part + 1 for part in parts),
    "choices differ": lambda chosen, *others: (chosen.flip(1), *others),
    "features differ": lambda *parts: (*parts[:-1], parts[-1].roll(1, -1)),
    "keys change": lambda chosen, keys, *others: (
        chosen,
        keys * (1 + 3e-5 * keys.abs().mean()),
        *others,
    ),
}
SAMPLED = replace(verify_bucket(2, 8, 64, 64, sampled=True), levels=3)


@pytest.mark.parametrize(
    "bucket",
    [
        verify_bucket(2, 8, 64, 64, sampled=False),
        SAMPLED,
        replace(SAMPLED, words=mask_words(61, 1)),
    ],
    ids=lambda bucket: bucket.name,
)
def test_a_graph_that_computes_something_else_is_refused(bucket: Bucket) -> None:
    decoder, features = tiny_decoder(num_hidden_layers=1), (0, 1)
    eager = EagerModel(decoder, rows=2, capacity=64, max_nodes=32)
    cache = empty_cache(decoder.config, 2, 64, torch.float32)
    graph = VerifyGraph(decoder, cache, bucket.levels, features)

    def check(change: Callable[..., Parts]) -> None:
        form = FeatureForm(features, decoder.config.hidden_size)
        over = CompiledModel({bucket: lambda **inputs: change(*graph(**inputs))}, cache, form)
        check_graph(over, eager, bucket, 56, features)

    check(lambda *parts: parts)
    for shown, wrong in WRONG.items():
        with pytest.raises(BadArtifact, match=shown):
            check(wrong)


@pytest.mark.parametrize(
    ("part", "cause", "shown"),
    [
        (0, "the row beside it", ["beside a row", "its answer"]),
        (1, "the row beside it", ["beside a row", "its keys"]),
        (4, "the row beside it", ["beside a row", "its draft values"]),
        (1, "its draft", ["below the root", "its keys"]),
    ],
)
def test_rounds_that_are_not_independent_bit_for_bit_are_refused(
    part: int, cause: str, shown: list[str]
) -> None:
    sizes: Any = SimpleNamespace(sequence_length=60, vocabulary=61)  # of the manifest
    model = beside.fused(tiny_decoder(1), tiny_decoder(2), Branches((2,)), length=60)
    bucket, graph = next(reversed(model.round_graphs.items()))
    assert bucket.rows == 2

    def leaking(**inputs: Tensor) -> Parts:
        parts = list(graph(**inputs))
        leak = inputs["draft_tokens"][1, 1] if cause == "the row beside it" else parts[0][0, 0]
        parts[part] = parts[part] + (leak if part == 0 else leak * 1e-4)
        return tuple(parts)

    check_independence(model, bucket, sizes)
    model.round_graphs[bucket] = leaking
    assert_refused(lambda: check_independence(model, bucket, sizes), shown, BadArtifact)


def test_a_dry_run_names_rounds_and_refuses_a_large_tree(
    capsys: pytest.CaptureFixture[str],
) -> None:
    dry = ["--target", "trn1", "--tensor_parallel", "2", "--fused", "--dry_run"]
    assert compile_main([*dry, "--gamma", "5", "--sequence_length", "256"]) == 0
    printed = capsys.readouterr().out
    assert "every round drafts a chain of 5" in printed
    assert "round_b4_1x1x1x1x1_s320_sampled" in printed
    assert compile_main([*dry, "--out", "nowhere", "--draft_tree", "9,9"]) == 1
    assert "--max_tree_nodes 64 is too small" in capsys.readouterr().err
