"""Which machine and which packages a target for trn2 or trn3 takes, and what they are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from compile.build.build import planned_manifest
from inference.artifact import Manifest
from inference.backends import neuron_sdk
from inference.backends.neuron import PACKAGE
from inference.backends.neuron_loading import check_native_machine
from inference.backends.torch_neuron_sdk import (
    check_native,
    configure,
    cores_of,
    native_versions,
    rank_environment,
)
from inference.errors import BadArtifact, MissingExtra
from tests.support.fake_neuron import lay_out
from tests.support.models import write_checkpoint
from tests.support.native_targets import native_builder, native_source, native_spec
from tests.support.refusals import assert_refused

FAMILY = ".".join(torch.__version__.split(".")[:2])
NATIVE = {"torch-neuronx": f"{FAMILY}.3.0.1", "neuronx-cc": "2.28.7631.0"}


@pytest.mark.parametrize(
    ("versions", "shown"),
    [
        ({}, "torch-neuronx is not installed"),
        ({"torch-neuronx": "2.9.0.2.15.32035"}, "up to 2.9, serves trn1 and inf2"),
        ({"torch-neuronx": "1.0"}, "is not the native package"),
        ({"torch-neuronx": "2.99.3.0.1"}, "goes with torch 2.99"),
        ({"torch-neuronx": NATIVE["torch-neuronx"]}, "neuronx-cc is not installed"),
        (NATIVE | {"neuronx-cc": "2.26.6360.0"}, "neuronx-cc 2.26.6360.0 is older than"),
    ],
)
def test_packages_that_do_not_serve_are_refused_with_the_install_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, versions: Mapping[str, str], shown: str
) -> None:
    lay_out(monkeypatch, tmp_path, versions, device=True)
    assert_refused(native_versions, [shown, "'torch-neuronx==2.14.*'"], MissingExtra)


def machine(
    patch: pytest.MonkeyPatch, folder: Path, instance: str = "", *, device: bool = True
) -> None:
    """A machine with the packages, whose torch has the device."""
    lay_out(patch, folder, NATIVE, device=device)
    patch.setattr(torch, "neuron", object(), raising=False)
    if instance:
        neuron_sdk.PRODUCT.write_text(f"{instance}\n", encoding="ascii")


@pytest.mark.parametrize("instance", ["", "trn2.3xlarge", "trn2n.48xlarge"])
def test_a_machine_of_the_target_gives_the_versions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, instance: str
) -> None:
    machine(monkeypatch, tmp_path, instance)
    assert check_native("trn2") == {"torch": torch.__version__, **NATIVE}


@pytest.mark.parametrize(
    ("instance", "device", "target", "shown"),
    [
        ("trn1.2xlarge", True, "trn2", "this is a trn1 instance"),
        ("", False, "trn3", "no Neuron device"),
    ],
)
def test_another_machine_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    instance: str,
    device: bool,
    target: str,
    shown: str,
) -> None:
    machine(monkeypatch, tmp_path, instance, device=device)
    assert_refused(lambda: check_native(target), [shown])


def test_a_torch_that_did_not_load_the_device_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lay_out(monkeypatch, tmp_path, NATIVE, device=True)
    shown = ["TORCH_DEVICE_BACKEND_AUTOLOAD"]
    assert_refused(lambda: check_native("trn2"), shown, MissingExtra)


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    checkpoint = write_checkpoint(tmp_path / "model", num_hidden_layers=1)
    spec = native_spec()
    planned = planned_manifest(spec, native_source(checkpoint), native_builder(checkpoint, spec))
    return replace(planned, versions={"torch": torch.__version__, **NATIVE})


def test_an_artefact_runs_on_the_machine_and_with_the_versions_that_it_was_built_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, manifest: Manifest
) -> None:
    machine(monkeypatch, tmp_path / "machine", "trn2.3xlarge")
    check_native_machine(manifest)
    other = replace(manifest, versions={**manifest.versions, "neuronx-cc": "2.29.1"})
    for each, shown in (
        (other, ["neuronx-cc 2.29.1", "here is 2.28"]),
        (replace(manifest, files={PACKAGE: "0" * 64}), ["built for trn2 with PyTorch/XLA"]),
    ):
        assert_refused(partial(check_native_machine, each), shown, BadArtifact)
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "1")
    assert_refused(lambda: check_native_machine(manifest), ["logical cores of 2"], BadArtifact)


@pytest.mark.parametrize(("stated", "cores"), [("", [0, 1]), ("4-7", [4, 5]), ("6,2-3", [6, 2])])
def test_ranks_take_the_cores_that_the_user_left_them(stated: str, cores: list[int]) -> None:
    assert cores_of(2, {"NEURON_RT_VISIBLE_CORES": stated}) == cores


@pytest.mark.parametrize("stated", ["3", "a-b"])
def test_too_few_cores_are_told_before_anything_starts(stated: str) -> None:
    shown = f"NEURON_RT_VISIBLE_CORES={stated}"
    assert_refused(lambda: cores_of(2, {"NEURON_RT_VISIBLE_CORES": stated}), [shown])


def test_a_rank_has_a_core_of_its_own_and_its_number() -> None:
    assert rank_environment(1, [6, 2]) == {
        "NEURON_RT_VISIBLE_CORES": "2",
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
    }


def test_torch_neuron_is_told_where_graphs_are_and_never_to_run_without_one(
    tmp_path: Path,
) -> None:
    environment = {"TORCH_NEURONX_NEFF_LOCAL_CACHE_DIR": "/elsewhere"}
    configure(tmp_path, "-O2", environment)
    assert environment == {
        "TORCH_NEURONX_NEFF_CACHE_DIR": str(tmp_path),
        "TORCH_NEURONX_NEFF_LOCAL_CACHE_DIR": "/elsewhere",
        "TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION": "1",
        "NEURON_CC_FLAGS": "-O2",
    }
