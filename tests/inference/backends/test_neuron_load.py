"""Loading an artefact for Neuron, the probe of the noise and the check of a device."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from compile.builders import neuron_artifact
from compile.neuron import check
from inference.backends.neuron import sdk as neuron_sdk
from inference.backends.neuron.loading import load_neuron
from inference.backends.neuron.model import runtime_error
from inference.backends.neuron.sdk import reserve_cores
from inference.command import UNEQUAL_DEVICE
from inference.errors import (
    BadArtifact,
    Busy,
    InvalidRequest,
    MissingExtra,
    OutriderError,
    Unavailable,
)
from inference.model.choice.arithmetic import noise_in_limbs
from inference.text.tokenizer import Tokenizer
from outrider.cli import main
from tests.support.fake_neuron import VERSIONS, Neuron
from tests.support.neuron_artifacts import build, built_model, spec_of
from tests.support.oracles import PINNED, exact_gumbel
from tests.support.refusals import assert_refused
from tests.support.repository import ROOT

Loading = Callable[[], None]


@pytest.fixture
def loading(neuron: Neuron, checkpoint: Path, tmp_path: Path) -> Loading:
    manifest = build(tmp_path / "a", checkpoint, spec_of(2))

    def load() -> None:
        load_neuron(tmp_path / "a", manifest, lambda line: None)

    return load


def set_version(patch: pytest.MonkeyPatch, package: str, number: str) -> None:
    installed = VERSIONS | {"torch": torch.__version__, package: number}
    patch.setattr(neuron_sdk, "version", installed.__getitem__)


Spoil = Callable[[Neuron, Path, pytest.MonkeyPatch], object]
SPOILT: list[tuple[Spoil, type[OutriderError], list[str]]] = [
    (lambda neuron, _, __: setattr(neuron, "busy", True), Busy, ["neuron-ls"]),
    (
        lambda neuron, _, __: setattr(neuron, "foreign_package", True),
        BadArtifact,
        ["build it again"],
    ),
    (lambda _, there, __: (there / "neuron0").unlink(), InvalidRequest, ["Neuron device"]),
    (
        lambda _, there, __: (there / "product_name").write_text("inf2.xlarge"),
        BadArtifact,
        ["built for trn1", "inf2"],
    ),
    (
        lambda _, __, patch: patch.setenv("NEURON_RT_VISIBLE_CORES", "3"),
        InvalidRequest,
        ["1 cores"],
    ),
    (lambda _, __, patch: patch.setenv("NEURON_RT_NUM_CORES", "1"), InvalidRequest, ["needs 2"]),
    (
        lambda _, __, patch: set_version(patch, "neuronx-distributed", "0.18.1"),
        BadArtifact,
        ["neuronx-distributed 0.19.28492", "0.18.1"],
    ),
]


@pytest.mark.parametrize(("spoil", "error", "shown"), SPOILT)
def test_what_keeps_an_artefact_from_running_is_said_with_its_remedy(
    loading: Loading,
    neuron: Neuron,
    packages: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Spoil,
    error: type[OutriderError],
    shown: list[str],
) -> None:
    spoil(neuron, packages, monkeypatch)
    assert_refused(loading, shown, error)


@pytest.mark.parametrize("compiler", ["2.27.5334.0", None])
def test_a_finished_artefact_loads_with_another_compiler_or_none(
    loading: Loading, monkeypatch: pytest.MonkeyPatch, compiler: str | None
) -> None:
    versions = VERSIONS | {"torch": torch.__version__, "neuronx-cc": compiler}

    def version(name: str) -> str:
        if (number := versions.get(name)) is None:
            raise PackageNotFoundError(name)
        return number

    monkeypatch.setattr(neuron_sdk, "version", version)
    loading()
    assert_refused(neuron_sdk.sdk_versions, ["neuronx-cc"], MissingExtra)


@pytest.mark.parametrize(
    ("stated", "asked"),
    [
        ({}, "2"),
        ({"NEURON_RT_NUM_CORES": "4"}, "4"),
        ({"NEURON_RT_NUM_CORES": "0"}, "0"),
        ({"NEURON_RT_VISIBLE_CORES": "0,2-3"}, None),
    ],
)
def test_a_target_reserves_the_cores_that_share_it_unless_the_user_says_otherwise(
    loading: Loading, monkeypatch: pytest.MonkeyPatch, stated: dict[str, str], asked: str | None
) -> None:
    for name, value in stated.items():
        monkeypatch.setenv(name, value)
    loading()
    assert os.environ.get("NEURON_RT_NUM_CORES") == asked


def test_a_second_artefact_that_needs_more_cores_than_the_first_is_refused_with_a_remedy() -> None:
    environment: dict[str, str] = {}
    reserve_cores(2, environment)
    reserve_cores(1, environment)
    assert_refused(lambda: reserve_cores(4, environment), ["2 cores", "process"])


def test_the_probes_table_has_known_answers_and_the_noise_that_winners_have() -> None:
    """1 - u has its least value, and is near every power of two from there to 2**-8."""
    table = check.host_noise()
    assert {(seed, position) for seed, position, *_ in PINNED} == {*check.ROWS}
    for seed, position, token, bits, value in PINNED:
        row = check.ROWS.index((seed, position))
        assert table[row, token].item() == pytest.approx(value, abs=2e-6)
        assert exact_gumbel(bits) == pytest.approx(value, abs=1e-6)
    uniform = -torch.expm1(-torch.exp(-table.double()))  # 1 - u
    beside = (uniform * 2**23 + 0.5).round()  # in the words' steps
    assert (int(beside.min()), int(beside.max())) == (1, 2**23)
    assert all((beside / 2**power - 1).abs().min() < 0.5 for power in range(16))


@pytest.mark.parametrize(
    "wrong",
    [lambda *at: noise_in_limbs(*at) * (1 + 2e-6), lambda seed, *at: noise_in_limbs(seed ^ 1, *at)],
    ids=["rounded", "other words"],
)
def test_a_device_with_other_noise_is_refused(
    monkeypatch: pytest.MonkeyPatch, neuron: Neuron, tmp_path: Path, wrong: Callable[..., Tensor]
) -> None:
    monkeypatch.setattr(check, "TOKENS", 1000)
    check.check_noise(spec_of(1), tmp_path)
    monkeypatch.setattr(check, "noise_in_limbs", wrong)
    shown = ["seed ", "position ", "is right", "--sampling greedy"]
    assert_refused(lambda: check.check_noise(spec_of(1), tmp_path), shown, BadArtifact)


MODEL = str(ROOT / "inference" / "data" / "draft")
Check = Callable[..., tuple[int, str]]


@pytest.fixture
def checked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Check:
    """The exit code of a small check with these flags, and what it printed."""
    monkeypatch.setattr(check, "TOKENS", 1000)
    size = ["--dtype", "float32", "--sequence_length", "64"]
    flags = ["--target", "trn1", "--model", MODEL, "--out", str(tmp_path / "a")]

    def run(*more: str) -> tuple[int, str]:
        code = check.main([*flags, *size, *more])
        return code, "".join(capsys.readouterr())

    return run


def test_the_check_passes_on_a_device_that_works(neuron: Neuron, checked: Check) -> None:
    code, printed = checked()
    assert code == 0
    assert "16000" in printed
    assert "48 of 48" in printed


def test_the_check_fails_on_a_device_that_chooses_otherwise(
    monkeypatch: pytest.MonkeyPatch, neuron: Neuron, checked: Check
) -> None:
    def swapped(*arguments: Any) -> Any:
        model = load_neuron(*arguments)
        choose = model.choose
        model.choose = lambda segments: [  # type: ignore[method-assign]
            chosen._replace(tokens=chosen.tokens[::-1]) for chosen in choose(segments)
        ]
        return model

    monkeypatch.setattr(check, "load_neuron", swapped)
    code, printed = checked()
    assert code == UNEQUAL_DEVICE
    assert "first difference: call 0" in printed


def test_the_check_wants_a_device(
    monkeypatch: pytest.MonkeyPatch, packages: Path, checked: Check
) -> None:
    Neuron(device=False).install(monkeypatch, packages)
    code, printed = checked()
    assert code == 1
    assert "Neuron device" in printed


def test_an_unknown_failure_of_the_runtime_keeps_its_first_line() -> None:
    told = runtime_error(RuntimeError("\nnrt_load failed: 4\nat x"))
    assert str(told).endswith(": nrt_load failed: 4")


@pytest.mark.parametrize(
    ("printed", "kind", "said"),
    [
        ("NeuronCore(s) not available - Requested:nc1-nc1", Busy, "reserved"),
        ("NRT:nrt_allocate_neuron_cores failed", Busy, "reserved"),
        ("nrt_execute failed with status 1003: Numerical Error", Unavailable, "NaN"),
        ("INFER_ERROR_SUBTYPE_NUMERICAL", Unavailable, "NaN"),
        ("nrt_execute timed out after 120 s, pid 31003", Unavailable, "NEURON_RT_EXEC_TIMEOUT=120"),
        ("libnccom.so is not available", Unavailable, "aws-neuronx-collectives"),
        ("Failed to allocate 54.676MB (usage: dma rings) on ND 0", Unavailable, "--rows 1"),
        ('nrt_load status=4 message="Allocation Failure"', Unavailable, "--tree_sizes"),
        ("requires Neuron Driver version 2.0 or greater", Unavailable, "aws-neuronx-dkms"),
        ("nd0 could not be initialized", Unavailable, "dmesg"),
    ],
)
def test_a_failure_of_the_runtime_is_told_by_what_it_printed_in_one_line_with_a_remedy(
    printed: str, kind: type[OutriderError], said: str
) -> None:
    told = runtime_error(RuntimeError(f"call of a graph\n{printed}\nat x"))
    assert type(told) is kind
    assert said in str(told)
    assert f"({printed})" in str(told)
    assert "\n" not in str(told)


@pytest.mark.parametrize("lost", ["prefill", "copy_rows", "fill_noise"])
def test_a_package_without_a_graph_of_its_manifest_is_refused(
    neuron: Neuron, checkpoint: Path, tmp_path: Path, lost: str
) -> None:
    manifest = build(tmp_path / "a", checkpoint, spec_of(1))
    for key, (size, graphs) in neuron.saved.items():
        kept = {name: graph for name, graph in graphs.items() if lost not in name}
        neuron.saved[key] = (size, kept)
    load = partial(load_neuron, tmp_path / "a", manifest, lambda line: None)
    assert_refused(load, [f"lacks graph {lost}"], BadArtifact)


def test_loading_says_where_it_is(neuron: Neuron, checkpoint: Path, tmp_path: Path) -> None:
    built_model(tmp_path / "a", checkpoint, spec_of(1))
    said: list[str] = []
    load_neuron(tmp_path / "a", build(tmp_path / "a", checkpoint, spec_of(1)), said.append)
    assert {"tiny", "1", "trn1"} <= {*said[0].split()}
    assert said[-1].startswith("[4/4] fill_noise ran in ")


TEXT = ["--role", "verify_target", "--prompt", "def", "--temperature", "1", "--seed", "3", "--json"]


def test_the_command_line_serves_an_artefact_for_neuron(
    monkeypatch: pytest.MonkeyPatch,
    neuron: Neuron,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(check, "TOKENS", 1000)
    model, flags = Path(MODEL), [*TEXT, "--max_new_tokens", "6"]
    spec = replace(spec_of(2), vocabulary=Tokenizer(model).vocabulary)
    artifact = str(neuron_artifact(spec, model, tmp_path, command="test", say=lambda line: None))
    eager = ["--model", MODEL, "--dtype", "float32", "--sequence_length", "64"]
    texts = []
    for how in (["--device", "neuron", "--artifact", artifact], eager):
        assert main([*flags, *how]) == 0
        texts.append(json.loads(capsys.readouterr().out)["text"])
    assert texts[0] == texts[1]
    assert main([*flags, "--device", "cpu", "--artifact", artifact]) == 1
    assert "trn1" in capsys.readouterr().err


def test_without_an_artefact_one_is_built_for_this_instance_and_kept(
    monkeypatch: pytest.MonkeyPatch,
    neuron: Neuron,
    packages: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    size = "--batch 1 --sequence_length 16 --max_tree_nodes 2 --dtype float32 --max_new_tokens 3"
    flags = [*TEXT, "--device", "neuron", "--model", MODEL, *size.split()]
    assert main(flags) == 1
    assert "trn1, inf2, trn2 or trn3" in capsys.readouterr().err
    (packages / "product_name").write_text("trn1.2xlarge")
    for shown in ("memory of a core", "using the artefact in"):
        assert main(flags) == 0
        assert shown in capsys.readouterr().err
