"""Which features a target is built with: named or read by a head, told, and part of the digest."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from compile.compile_options import CompileOptions
from compile.plan.memory import footprint
from compile.plan.plan_report import describe
from compile.request import find_checkpoint, make_request
from compile.spec import CompileSpec, prefill_bucket, verify_bucket
from inference.errors import BadArtifact
from inference.files.artifact import read_manifest, write_manifest
from inference.model.checkpoints.config import read_config
from tests.support import artifacts, heads
from tests.support.models import write_checkpoint
from tests.support.refusals import assert_refused
from tests.support.repository import ROOT

EIGHT = ROOT / "docs/shapes/llama-3.1-8b"
JUNK = 2112


def asked(features: str, model: Path = EIGHT, **more: object) -> CompileSpec:
    options = CompileOptions(model=str(model), features=features, dry_run=True, **more)  # type: ignore[arg-type]
    return make_request(options, find_checkpoint(options)).spec


@pytest.mark.parametrize(
    ("given", "layers"), [("29,2,16", (2, 16, 29)), ("0,32", (0, 32)), ("eagle3", (2, 16, 29))]
)
def test_layers_are_named_by_numbers_or_as_those_of_eagle3(
    given: str, layers: tuple[int, ...]
) -> None:
    assert asked(given).features == layers


def test_a_head_names_the_layers_that_it_reads(tmp_path: Path) -> None:
    target = write_checkpoint(tmp_path / "target")
    config = read_config(target)
    raw = heads.raw_config(config, eagle_aux_hidden_state_layer_ids=[0, 2])
    head = heads.write_head(tmp_path / "head", raw, heads.tensors_of(config))
    assert asked(str(head), target).features == (0, 2)


def test_a_layer_that_the_target_lacks_and_graphs_that_return_no_features_are_refused() -> None:
    assert_refused(lambda: asked("2,33"), ["--features 2,33", "0 to 32"])
    fused = partial(asked, "2", target="cpu", fused=True, draft_model=str(EIGHT))
    assert_refused(fused, ["--features", "--fused"])


def test_features_are_part_of_an_artefacts_digest_and_their_absence_is_not(tmp_path: Path) -> None:
    plain = artifacts.build(tmp_path / "plain")
    named = replace(plain, features=(0, 2))
    assert named.digest() != plain.digest()
    for manifest in (plain, named):
        write_manifest(tmp_path, manifest)
        assert read_manifest(tmp_path) == manifest
        assert ("features" in (tmp_path / "manifest.json").read_text()) == bool(manifest.features)
    write_manifest(tmp_path, replace(plain, features=(2, 0)))
    assert_refused(lambda: read_manifest(tmp_path), ["ascending"], BadArtifact)


def neuron_spec(target: str, features: tuple[int, ...]) -> CompileSpec:
    buckets = (prefill_bucket(1, 512, JUNK, JUNK), verify_bucket(4, 16, JUNK, JUNK, sampled=True))
    return CompileSpec(
        "shapes only", target, 128_256, buckets, 4, 2096, 16, "bfloat16", 4, features=features
    )


def test_a_plan_tells_of_the_features_of_its_graphs() -> None:
    config, spec = read_config(EIGHT), neuron_spec("trn1", (2, 16, 29))
    lines = list(describe(spec, config, footprint(config, spec)))
    assert "inputs of layers 2, 16, 29 with each node: 24 KiB" in lines
