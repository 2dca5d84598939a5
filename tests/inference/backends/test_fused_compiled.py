"""A target and its draft compiled for this CPU into one artefact: built, checked, served."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from compile import round_check
from compile.__main__ import main as compile_main
from compile.build.build import build_artifact, read_source
from compile.build.cpu import CpuBuilder
from compile.round_check import check_independence
from compile.spec import CompileSpec, verify_bucket
from inference.backends.eager import EagerModel
from inference.backends.graphs.fused import FusedModel, load_fused
from inference.engine.engine import Engine
from inference.engine.sessions.local_session import LocalSession
from inference.errors import BadArtifact
from inference.files.artifact import (
    MANIFEST,
    DraftBucket,
    FusedPart,
    Manifest,
    RoundBucket,
    read_manifest,
)
from inference.model.checkpoints.config import read_raw_config
from inference.model.checkpoints.weight_files import fingerprint
from inference.model.decoder import Decoder
from inference.text.tokenizer import Tokenizer
from inference.tree.tree_shape import Branches
from outrider.options.roles import FusedTargetRole
from outrider.target.target import load_target
from tests.support.backends import NO_COMPILER
from tests.support.equality import NearTies
from tests.support.models import SAMPLINGS, loaded, write_checkpoint_with_tokenizer
from tests.support.pairs import alone, assert_drafted_text
from tests.support.refusals import assert_refused

pytestmark = [pytest.mark.extended, NO_COMPILER]

LENGTH, TREE, SHAPE = 60, 4, Branches((2,))
JUNK = LENGTH + TREE


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint_with_tokenizer(tmp_path_factory.mktemp("target"), num_hidden_layers=1)


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint_with_tokenizer(
        tmp_path_factory.mktemp("draft"), seed=2, num_hidden_layers=1
    )


class Build(NamedTuple):
    """A build of the target's graphs, the draft's, and a round of two rows; and what it printed."""

    spec: CompileSpec
    source: Path
    draft: Path
    lines: list[str]

    def into(self, directory: Path) -> Manifest:
        return build_artifact(
            self.spec,
            read_source(self.source),
            CpuBuilder(self.spec, self.source, self.draft),
            directory,
            command="test",
            say=self.lines.append,
        )


@pytest.fixture(scope="module")
def build(source: Path, draft: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Build]:
    part = FusedPart(
        "disagreeing draft",
        fingerprint(draft),
        read_raw_config(draft),
        (DraftBucket(1, 16, JUNK, 1, 1, False, JUNK),),
        (RoundBucket.of(SHAPE, 2, JUNK, JUNK, sampled=True),),
    )
    graphs, vocabulary = (
        verify_bucket(2, TREE, JUNK, JUNK, sampled=True),
        Tokenizer(source).vocabulary,
    )
    spec = CompileSpec("tiny", "cpu", vocabulary, (graphs,), 2, LENGTH, TREE, fused=part)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield Build(spec, source, draft, [])


@pytest.fixture(scope="module")
def built(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("artifact")
    build.into(out)
    return out


@pytest.fixture(scope="module")
def manifest(built: Path) -> Manifest:
    return read_manifest(built)


@pytest.fixture(scope="module")
def target(source: Path) -> Decoder:
    return loaded(source, LENGTH, Tokenizer(source).vocabulary)


def test_an_artefact_holds_both_models_and_says_so(
    build: Build, built: Path, manifest: Manifest
) -> None:
    assert manifest.fused is not None
    assert {path.relative_to(built).as_posix() for path in (built / "graphs").iterdir()} == {
        f"graphs/{bucket.name}.pt2" for bucket in manifest.graphs
    }
    assert {"weights/model.safetensors", "weights/draft.safetensors"} < set(manifest.files)
    assert str(manifest.fused.shape) == "tree of 2 nodes (2 children a node)"
    assert build.lines[-2:] == [
        "rounds, greedy: 30 of 30 choices equal",
        "rounds, temperature 1: 30 of 30 choices equal",
    ]


def test_the_role_serves_the_targets_own_text(built: Path, target: Decoder, ties: NearTies) -> None:
    served = load_target(FusedTargetRole(artifact=str(built), host="127.0.0.1", port=0))
    assert served.description.draft_model == (
        "disagreeing draft (in the target's graph: tree of 2 nodes (2 children a node))"
    )
    eager = EagerModel(target, rows=1, capacity=JUNK, max_nodes=16)
    plain = Engine(eager, sequence_length=LENGTH, max_tree_nodes=8, vocabulary=target.vocabulary)
    for length, params in enumerate(SAMPLINGS[:4], 5):
        prompt = np.random.default_rng(length).integers(0, target.vocabulary, length).tolist()
        own = alone(LocalSession(plain), prompt, params, 20)
        assert_drafted_text(served.engine, target, prompt, params, own, ties)


Graph = Callable[..., tuple[torch.Tensor, ...]]


def with_round(built: Path, manifest: Manifest, change: Callable[[Graph], Graph]) -> FusedModel:
    """The artefact's model, the graph of its rounds changed."""
    model = load_fused(built, manifest)
    ((bucket, graph),) = model.round_graphs.items()
    model.round_graphs = {bucket: change(graph)}
    return model


def test_a_build_whose_rounds_write_another_text_ends_without_a_manifest(
    build: Build, built: Path, manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shifted(graph: Graph) -> Graph:
        def call(**inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            answer, *others = graph(**inputs)
            answer[:, -1] = (answer[:, -1] + 1) % manifest.vocabulary
            return answer, *others

        return call

    out, wrong = shutil.copytree(built, tmp_path / "out"), with_round(built, manifest, shifted)
    (out / MANIFEST).unlink()
    monkeypatch.setattr(round_check, "load_fused", lambda *_: wrong)
    assert_refused(lambda: build.into(out), ["own text"], BadArtifact)
    assert not (out / MANIFEST).exists()
    monkeypatch.undo()
    assert build.into(out).files == manifest.files


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
    built: Path, manifest: Manifest, part: int, cause: str, shown: list[str]
) -> None:
    def leaking(graph: Graph) -> Graph:
        def call(**inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            parts = list(graph(**inputs))
            beside = cause == "the row beside it"
            leak = inputs["draft_tokens"][1, 1] if beside else parts[0][0, 0]
            parts[part] = parts[part] + (leak if part == 0 else leak * 1e-4)
            return tuple(parts)

        return call

    assert manifest.fused is not None
    (bucket,) = manifest.fused.rounds
    check_independence(load_fused(built, manifest), bucket, manifest)
    wrong = with_round(built, manifest, leaking)
    assert_refused(lambda: check_independence(wrong, bucket, manifest), shown, BadArtifact)


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


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"draft_model": "another"}, "contains a draft"),
        ({"draft_quantization": "int8"}, "remove --draft_quantization"),
        ({"max_tree_nodes": 2}, "3 nodes"),
    ],
)
def test_flags_that_contradict_the_artefact_are_refused(
    built: Path, changes: dict[str, Any], shown: str
) -> None:
    options = FusedTargetRole(artifact=str(built), host="127.0.0.1", port=0)
    assert_refused(lambda: load_target(options.replace(**changes)), [shown])
