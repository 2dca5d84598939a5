"""Loading an artefact for Neuron, the probe of the noise and the check of a device."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

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
from inference.files.artifact import MANIFEST
from inference.model.choice.arithmetic import noise_in_limbs
from outrider.cli import main
from tests.support.fake_neuron import VERSIONS, Neuron
from tests.support.neuron_artifacts import build, spec_of
from tests.support.oracles import PINNED, exact_gumbel
from tests.support.refusals import assert_refused
from tests.support.repository import ROOT

Loading = Callable[[], object]


@pytest.fixture
def loading(neuron: Neuron, checkpoint: Path, tmp_path: Path) -> Loading:
    manifest = build(tmp_path / "a", checkpoint, spec_of(2))
    return lambda: load_neuron(tmp_path / "a", manifest, lambda line: None)


def loses(neuron: Neuron, lost: str) -> None:
    """The package has no graph of this name."""
    for key, (size, graphs) in neuron.saved.items():
        kept = {name: graph for name, graph in graphs.items() if lost not in name}
        neuron.saved[key] = (size, kept)


def set_version(patch: pytest.MonkeyPatch, package: str, number: str | None) -> None:
    """Have this version of a package installed, or none."""
    installed = VERSIONS | {"torch": torch.__version__, package: number}

    def version(name: str) -> str:
        if (found := installed[name]) is None:
            raise PackageNotFoundError(name)
        return found

    patch.setattr(neuron_sdk, "version", version)


NXD, CORES = "neuronx-distributed", "NEURON_RT_NUM_CORES"
Spoil = Callable[[Neuron, Path, pytest.MonkeyPatch], object]
SPOILT: list[tuple[Spoil, type[OutriderError], list[str]]] = [
    (lambda n, *_: setattr(n, "busy", True), Busy, ["neuron-ls"]),
    (lambda n, *_: setattr(n, "foreign_package", True), BadArtifact, ["build it again"]),
    (lambda n, *_: loses(n, "prefill"), BadArtifact, ["lacks graph prefill"]),
    (lambda n, *_: loses(n, "copy_rows"), BadArtifact, ["lacks graph copy_rows"]),
    (lambda n, *_: loses(n, "fill_noise"), BadArtifact, ["lacks graph fill_noise"]),
    (lambda _, there, __: (there / "neuron0").unlink(), InvalidRequest, ["Neuron device"]),
    (
        lambda _, there, __: (there / "product_name").write_text("inf2.xlarge"),
        BadArtifact,
        ["built for trn1", "inf2"],
    ),
    (lambda *m: m[2].setenv("NEURON_RT_VISIBLE_CORES", "3"), InvalidRequest, ["1 cores"]),
    (lambda *m: m[2].setenv(CORES, "1"), InvalidRequest, ["needs 2"]),
    (lambda *m: set_version(m[2], NXD, "0.18.1"), BadArtifact, [f"{NXD} 0.19.28492", "0.18.1"]),
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
    set_version(monkeypatch, "neuronx-cc", compiler)
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
    assert_refused(lambda: reserve_cores(4, environment), ["2 cores", "process of its own"])


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


@pytest.mark.parametrize(
    ("device", "code", "shown"),
    [
        ("works", 0, ["16000", "48 of 48"]),
        ("chooses otherwise", UNEQUAL_DEVICE, ["first difference: call 0"]),
        ("is not there", 1, ["Neuron device"]),
    ],
)
def test_the_check_of_a_device_tells_by_its_code_whether_it_can_be_used(
    monkeypatch: pytest.MonkeyPatch,
    packages: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    device: str,
    code: int,
    shown: list[str],
) -> None:
    def swapped(*arguments: Any) -> Any:
        model = load_neuron(*arguments)
        choose = model.choose
        model.choose = lambda segments: [  # type: ignore[method-assign]
            chosen._replace(tokens=chosen.tokens[::-1]) for chosen in choose(segments)
        ]
        return model

    Neuron(device=device != "is not there").install(monkeypatch, packages)
    monkeypatch.setattr(check, "TOKENS", 1000)
    if device == "chooses otherwise":
        monkeypatch.setattr(check, "load_neuron", swapped)
    flags = ["--target", "trn1", "--model", MODEL, "--out", str(tmp_path / "a")]
    assert check.main([*flags, "--dtype", "float32", "--sequence_length", "64"]) == code
    printed = "".join(capsys.readouterr())
    assert [words for words in shown if words not in printed] == []


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
        ("\nnrt_load failed: 4", Unavailable, "the Neuron runtime failed: nrt_load failed: 4"),
    ],
)
def test_a_failure_of_the_runtime_is_told_in_one_line_with_its_remedy_where_one_is_known(
    printed: str, kind: type[OutriderError], said: str
) -> None:
    told = runtime_error(RuntimeError(f"{printed}\nat x"))
    assert type(told) is kind
    assert said in str(told)
    assert printed.strip() in str(told)
    assert "\n" not in str(told)


TEXT = ["--role", "verify_target", "--prompt", "def", "--temperature", "1", "--seed", "3", "--json"]


def test_the_command_line_serves_an_artefact_for_neuron_and_builds_the_one_that_lacks(
    monkeypatch: pytest.MonkeyPatch,
    neuron: Neuron,
    packages: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Once, for this instance. The text is that of the eager model."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    size = "--sequence_length 16 --max_tree_nodes 2 --dtype float32"
    flags, eager = [*TEXT, "--max_new_tokens", "3"], ["--model", MODEL, *size.split()]
    built = ["--device", "neuron", "--batch", "1", *eager]
    assert main([*flags, *built]) == 1
    assert "trn1, inf2, trn2 or trn3" in capsys.readouterr().err
    (packages / "product_name").write_text("trn1.2xlarge")
    texts = []
    for how, shown in ((built, "memory of a core"), (built, "using the artefact in"), (eager, "")):
        assert main([*flags, *how]) == 0
        printed = capsys.readouterr()
        assert shown in printed.err
        texts.append(json.loads(printed.out)["text"])
    (manifest,) = (tmp_path / "cache").rglob(MANIFEST)
    made = ["--artifact", str(manifest.parent)]
    assert main([*flags, "--device", "neuron", *made]) == 0
    texts.append(json.loads(capsys.readouterr().out)["text"])
    assert len(set(texts)) == 1
    assert main([*flags, "--device", "cpu", *made]) == 1
    assert "trn1" in capsys.readouterr().err
