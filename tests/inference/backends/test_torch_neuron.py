"""Targets on native PyTorch, with ranks on the CPU, and on transformers-neuronx: what they take."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.exc import FailOnRecompileLimitHit

from compile.spec import prefill_bucket
from inference.backends.eagle_model import read_embeddings
from inference.backends.native.program import (
    RankPlan,
    RankProgram,
    compiled_graphs,
)
from inference.backends.native.ranks import Ranks, check_native_machine
from inference.backends.native.sdk import (
    check_native,
    configure,
    cores_of,
    rank_environment,
)
from inference.backends.neuron import sdk as neuron_sdk
from inference.backends.neuron.model import PACKAGE
from inference.errors import (
    BadArtifact,
    InvalidRequest,
    MissingExtra,
    OutriderError,
    Unavailable,
    UnsupportedModel,
)
from inference.files.artifact import Manifest
from inference.model.cache import empty_cache
from inference.model.graphs.verify_graph import example_inputs
from inference.tree.token_tree import TokenTree
from tests.support import heads
from tests.support.artifacts import planned_manifest
from tests.support.backends import Machine, legacy
from tests.support.fake_neuron import Neuron, lay_out
from tests.support.models import sequence_after, tiny_decoder, write_checkpoint
from tests.support.neuron_artifacts import (
    CPU,
    JUNK,
    ROWS,
    VOCABULARY,
    build,
    native_builder,
    native_spec,
    prepared,
    source_of,
    spec_of,
    whole,
)
from tests.support.refusals import assert_refused


@pytest.fixture(scope="module")
def shallow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model"), num_hidden_layers=1)


def test_a_call_of_another_shape_is_an_error_and_no_compilation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(tmp_path))
    bucket, wider = (prefill_bucket(1, nodes, JUNK, JUNK) for nodes in (16, 3))
    decoder = tiny_decoder(vocabulary=VOCABULARY, num_hidden_layers=1)
    cache = empty_cache(decoder.config, ROWS, JUNK, torch.float32)
    plan = RankPlan(tmp_path, native_spec(1), CPU)
    graph = compiled_graphs(plan, decoder, cache, None)[bucket.name]
    where = [tensor.data_ptr() for tensor in cache.tensors]
    with torch.no_grad():
        graph(**example_inputs(bucket))
        graph(**example_inputs(bucket))
        assert [tensor.data_ptr() for tensor in cache.tensors] == where
        assert cache.keys[0][0, JUNK].any(), "the call wrote nothing"
        with pytest.raises(FailOnRecompileLimitHit):
            graph(**example_inputs(wider))


@pytest.mark.slow
def test_a_lost_rank_is_told_at_once_and_ends_every_call(shallow: Path, tmp_path: Path) -> None:
    """And one that cannot load is told to the caller."""
    artefact, spec, told = tmp_path / "out", native_spec(2), Queue[str]()
    prepared(artefact, shallow, spec)
    others = multiprocessing.active_children()
    ranks = Ranks(RankPlan(artefact, spec, CPU), told.put)
    mine = [child for child in multiprocessing.active_children() if child not in others]
    next(child for child in mine if child.name == "rank 1").kill()
    why = told.get(timeout=30)
    assert "rank 1 " in why
    assert "-9" in why
    with pytest.raises(Unavailable, match="rank 1 "):
        ranks(spec.buckets[0].name, example_inputs(spec.buckets[0]))
    ranks.close()
    (artefact / "weights/config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UnsupportedModel, match=r"config\.json"):
        Ranks(RankPlan(artefact, spec, CPU))


def test_a_heads_embeddings_are_put_together_from_all_ranks(
    neuron: Neuron, checkpoint: Path, tmp_path: Path
) -> None:
    expected, native = whole(checkpoint).model.embed_tokens.weight, tmp_path / "native"
    built = build(tmp_path / "artifact", checkpoint, spec_of(2, features=heads.KEPT))
    for directory, manifest in (
        (tmp_path / "artifact", built),
        (native, prepared(native, checkpoint, native_spec(2))),
    ):
        found = read_embeddings(directory, manifest)
        assert found.shape == expected.shape
        assert found[:VOCABULARY].equal(expected[:VOCABULARY])
        assert not found[VOCABULARY:].any()


def test_only_the_rank_that_answers_brings_features_to_the_host() -> None:
    chosen, features = torch.ones(2, 3), torch.ones(2, 3, 8, dtype=torch.bfloat16)
    graphs, room = {"tree": lambda **_: (chosen, features)}, torch.zeros(99, dtype=torch.bfloat16)
    first, other = (RankProgram(graphs, torch.device("cpu"), *given) for given in ([room], []))
    assert first("tree", {})[1].equal(features)
    assert room.count_nonzero() == features.numel()
    assert [part.tolist() for part in other("tree", {})] == [chosen.tolist()]


FAMILY = ".".join(torch.__version__.split(".")[:2])
NATIVE = {"torch-neuronx": f"{FAMILY}.3.0.1", "neuronx-cc": "2.28.7631.0"}


def machine(
    patch: pytest.MonkeyPatch,
    folder: Path,
    instance: str = "",
    *,
    versions: Mapping[str, str] = NATIVE,
    device: bool = True,
) -> None:
    """A machine with these packages, whose torch has the device."""
    lay_out(patch, folder, versions, device=device)
    patch.setattr(torch, "neuron", object(), raising=False)
    if instance:
        neuron_sdk.PRODUCT.write_text(f"{instance}\n", encoding="ascii")


INSTALL, ONLY = "'torch-neuronx==2.14.*'", {"torch-neuronx": NATIVE["torch-neuronx"]}
OTHER_COMPILER = NATIVE | {"neuronx-cc": "2.26.6360.0"}
MACHINES_REFUSED: list[tuple[dict[str, Any], type[OutriderError], list[str]]] = [
    ({"versions": {}}, MissingExtra, ["torch-neuronx", INSTALL]),
    ({"versions": {"torch-neuronx": "2.9.0.2.15.32035"}}, MissingExtra, ["2.9", INSTALL]),
    ({"versions": {"torch-neuronx": "1.0"}}, MissingExtra, ["1.0", INSTALL]),
    ({"versions": {"torch-neuronx": "2.99.3.0.1"}}, MissingExtra, ["torch 2.99", INSTALL]),
    ({"versions": ONLY}, MissingExtra, ["neuronx-cc", INSTALL]),
    ({"versions": OTHER_COMPILER}, MissingExtra, ["neuronx-cc 2.26.6360.0", INSTALL]),
    ({"instance": "trn1.2xlarge"}, InvalidRequest, ["trn1"]),
    ({"device": False}, InvalidRequest, ["Neuron device"]),
]


@pytest.mark.parametrize(("change", "error", "shown"), MACHINES_REFUSED)
def test_a_machine_that_cannot_serve_is_refused_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    change: dict[str, Any],
    error: type[OutriderError],
    shown: list[str],
) -> None:
    machine(monkeypatch, tmp_path, **change)
    assert_refused(lambda: check_native("trn2"), shown, error)


@pytest.mark.parametrize("instance", ["", "trn2.3xlarge", "trn2n.48xlarge"])
def test_a_machine_of_the_target_gives_the_versions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, instance: str
) -> None:
    """Where torch has the device."""
    machine(monkeypatch, tmp_path, instance)
    assert check_native("trn2") == {"torch": torch.__version__, **NATIVE}
    monkeypatch.delattr(torch, "neuron")
    shown = ["TORCH_DEVICE_BACKEND_AUTOLOAD"]
    assert_refused(lambda: check_native("trn2"), shown, MissingExtra)


@pytest.fixture
def manifest(shallow: Path) -> Manifest:
    spec = native_spec()
    planned = planned_manifest(spec, source_of(shallow), native_builder(shallow, spec))
    return replace(planned, versions={"torch": torch.__version__, **NATIVE})


def test_an_artefact_runs_on_the_machine_and_with_the_versions_that_it_was_built_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, manifest: Manifest
) -> None:
    machine(monkeypatch, tmp_path / "machine", "trn2.3xlarge")
    check_native_machine(manifest)
    other = replace(manifest, versions={**manifest.versions, "neuronx-cc": "2.29.1"})
    for each, shown in (
        (other, ["neuronx-cc 2.29.1", "2.28"]),
        (replace(manifest, files={PACKAGE: "0" * 64}), ["trn2", "PyTorch/XLA"]),
    ):
        assert_refused(partial(check_native_machine, each), shown, BadArtifact)
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "1")
    assert_refused(lambda: check_native_machine(manifest), ["logical cores", "2"], BadArtifact)


@pytest.mark.parametrize(
    ("stated", "cores"),
    [("", [0, 1]), ("4-7", [4, 5]), ("6,2-3", [6, 2]), ("3", None), ("a-b", None)],
)
def test_each_rank_takes_a_core_that_the_user_left(stated: str, cores: list[int] | None) -> None:
    """And its number among the ranks. Too few cores are told before anything starts."""
    variables = {"NEURON_RT_VISIBLE_CORES": stated}
    if cores is None:
        shown = [f"NEURON_RT_VISIBLE_CORES={stated}"]
        assert_refused(lambda: cores_of(2, variables), shown)
        return
    assert cores_of(2, variables) == cores
    assert rank_environment(1, cores) == {
        "NEURON_RT_VISIBLE_CORES": str(cores[1]),
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
    }


def test_torch_neuron_is_told_where_graphs_are_and_never_to_run_without_one(tmp_path: Path) -> None:
    environment = {"TORCH_NEURONX_NEFF_LOCAL_CACHE_DIR": "/elsewhere"}
    configure(tmp_path, "-O2", environment)
    assert environment == {
        "TORCH_NEURONX_NEFF_CACHE_DIR": str(tmp_path),
        "TORCH_NEURONX_NEFF_LOCAL_CACHE_DIR": "/elsewhere",
        "TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION": "1",
        "NEURON_CC_FLAGS": "-O2",
    }


def legacy_host(patch: pytest.MonkeyPatch, folder: Path, **model: Any) -> Machine:
    checkpoint = write_checkpoint(folder / "model", **model)
    return Machine(checkpoint, folder, folder, patch, partial(pytest.fail, "nothing is traced"))


def test_a_branching_tree_and_nodes_elsewhere_in_the_cache_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sequence = sequence_after(model := legacy(legacy_host(monkeypatch, tmp_path)), [5] * 9)
    with pytest.raises(InvalidRequest, match="chains only"):
        sequence.choose(TokenTree(np.array([5, 6, 7]), np.array([-1, 0, 0])))
    segment = sequence.prepare(TokenTree.chain([3, 4]))
    for moved in (
        segment._replace(slots=segment.slots + 1),
        segment._replace(positions=segment.positions + 1),
    ):
        with pytest.raises(InvalidRequest, match="continue the cache"):
            model.choose([moved])


RENAMED = {"rope_theta": 5e5, "rope_type": "default"}
LEGACY_REFUSED: list[tuple[dict[str, str], dict[str, Any], str]] = [
    ({"transformers-neuronx": "0.12.3"}, {}, "transformers-neuronx 0.12.3"),
    ({"transformers": "5.23.0"}, {}, "transformers 5.23.0"),
    ({"instance": "trn2.3xlarge"}, {}, "trn1 or inf2"),
    ({}, {"attention_bias": True}, "biases"),
    ({}, {"rope_theta": None, "rope_parameters": RENAMED}, "reads other"),
]


@pytest.mark.parametrize(("host", "model", "shown"), LEGACY_REFUSED)
def test_what_cannot_serve_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, host: Any, model: Any, shown: str
) -> None:
    with pytest.raises(OutriderError, match=shown):
        legacy(legacy_host(monkeypatch, tmp_path, **model), **host)
