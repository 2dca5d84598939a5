"""Loading an artefact for Neuron, the probe of the noise and the check of a device, on a stand-in
machine.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from compile import check, probe
from compile.builders import neuron_artifact
from inference.artifact import Manifest
from inference.backends import neuron_sdk
from inference.backends.neuron import runtime_error
from inference.backends.neuron_loading import load_neuron
from inference.backends.neuron_sdk import reserve_cores
from inference.errors import BadArtifact, Busy, InvalidRequest, OutriderError, Unavailable
from inference.model.noise import from_limbs, noise_in_limbs
from inference.text import Tokenizer
from tests.support.fake_neuron import VERSIONS, Neuron
from tests.support.neuron_artifacts import build, built_model, spec_of
from tests.support.noise_oracle import PINNED, WORD, exact_gumbel
from tests.support.repository import ROOT

# --- loading
# --------------------------------------------------------------------------------------------------


def loading(
    monkeypatch: pytest.MonkeyPatch, packages: Path, checkpoint: Path, tmp_path: Path
) -> tuple[Neuron, Manifest]:
    neuron = Neuron().install(monkeypatch, packages)
    return neuron, build(tmp_path / "a", checkpoint, spec_of(2))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"busy": True}, Busy, "neuron-ls"),
        ({"foreign_package": True}, BadArtifact, "build it again"),
        ({"no_device": True}, InvalidRequest, "no Neuron device"),
        ({"product": "inf2.xlarge"}, BadArtifact, "built for trn1, this is a inf2"),
        (
            {"environ": ("NEURON_RT_VISIBLE_CORES", "3")},
            InvalidRequest,
            "leaves this process 1 cores",
        ),
        ({"environ": ("NEURON_RT_NUM_CORES", "1")}, InvalidRequest, "needs 2"),
        (
            {"version": ("neuronx-distributed", "0.18.1")},
            BadArtifact,
            r"neuronx-distributed 0\.19\.28492, here is 0\.18\.1",
        ),
    ],
)
def test_what_keeps_an_artefact_from_running_is_said_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch,
    packages: Path,
    checkpoint: Path,
    tmp_path: Path,
    change: dict[str, Any],
    error: type,
    words: str,
) -> None:
    neuron, manifest = loading(monkeypatch, packages, checkpoint, tmp_path)
    if "product" in change:
        (packages / "product_name").write_text(change["product"])
    elif "environ" in change:
        monkeypatch.setenv(*change["environ"])
    elif "version" in change:
        installed = VERSIONS | {"torch": torch.__version__} | dict([change["version"]])
        monkeypatch.setattr(neuron_sdk, "version", installed.__getitem__)
    elif "no_device" in change:
        (packages / "neuron0").unlink()
    for name in ("busy", "foreign_package"):
        setattr(neuron, name, change.get(name, False))
    with pytest.raises(error, match=words):
        load_neuron(tmp_path / "a", manifest, lambda line: None)


def test_cores_left_by_the_user_are_enough(
    monkeypatch: pytest.MonkeyPatch, packages: Path, checkpoint: Path, tmp_path: Path
) -> None:
    _, manifest = loading(monkeypatch, packages, checkpoint, tmp_path)
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", "0,2-3")
    load_neuron(tmp_path / "a", manifest, lambda line: None)
    assert "NEURON_RT_NUM_CORES" not in os.environ


@pytest.mark.parametrize(("stated", "asked"), [(None, "2"), ("4", "4"), ("0", "0")])
def test_a_target_reserves_the_cores_that_share_it_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
    packages: Path,
    checkpoint: Path,
    tmp_path: Path,
    stated: str | None,
    asked: str,
) -> None:
    _, manifest = loading(monkeypatch, packages, checkpoint, tmp_path)
    if stated is not None:
        monkeypatch.setenv("NEURON_RT_NUM_CORES", stated)
    load_neuron(tmp_path / "a", manifest, lambda line: None)
    assert os.environ["NEURON_RT_NUM_CORES"] == asked


def test_a_second_artefact_that_needs_more_cores_than_the_first_is_refused_with_a_remedy() -> None:
    environment: dict[str, str] = {}
    reserve_cores(2, environment)
    reserve_cores(1, environment)
    with pytest.raises(InvalidRequest, match=r"has 2 cores since it .* in a process of its own"):
        reserve_cores(4, environment)


def test_any_other_failure_of_the_runtime_keeps_its_first_line() -> None:
    assert (
        str(runtime_error(RuntimeError("\nnrt_load failed: 4\nat x")))
        == "the Neuron runtime failed: nrt_load failed: 4"
    )


# --- noise and check
# --------------------------------------------------------------------------------------------------


def test_the_probes_vectors_are_the_contracts() -> None:
    assert [tuple(vector) for vector in probe.VECTORS[: len(PINNED)]] == PINNED
    words, drawn = probe.expected()
    for seed, position, token, bits, value in probe.VECTORS:
        row = probe.ROWS.index((seed, position))
        assert words[row, token].item() % WORD == bits
        assert drawn[row, token].item() == pytest.approx(value, abs=2e-6)
        assert exact_gumbel(bits) == pytest.approx(value, abs=1e-6)


def test_the_probes_table_has_the_noise_that_winners_have() -> None:
    """1 - u has its least value, and is near every power of two from there to 2**-8."""
    words, _ = probe.expected()
    upper = (words.long() % WORD) // 2**9
    assert (int(upper.min()), int(upper.max())) == (0, 2**23 - 1)
    assert all(((2**23 - upper) / 2**power - 1).abs().min() < 0.5 for power in range(16))


def test_a_device_with_other_noise_is_refused(
    monkeypatch: pytest.MonkeyPatch, neuron: Neuron, tmp_path: Path
) -> None:
    probe.check_noise(spec_of(1), tmp_path)

    monkeypatch.setattr(probe, "noise_in_limbs", lambda *_: noise_in_limbs(*_) * (1 + 2e-6))
    with pytest.raises(BadArtifact, match=r"seed 26, position 0, token 133856 gave noise 16\.6"):
        probe.check_noise(spec_of(1), tmp_path)

    def rounded(limbs: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Words on a unit that computes in float32."""
        return from_limbs(limbs).to(torch.float32).to(torch.int32)

    monkeypatch.setattr(probe, "from_limbs", rounded)
    with pytest.raises(
        BadArtifact, match=r"seed 0, position 0, token 0 gave bits .* 0x9d1c5ec6 is right"
    ):
        probe.check_noise(spec_of(1), tmp_path)


CHECK = ["check", "--target", "trn1", "--dtype", "float32", "--sequence_length", "64"]


@pytest.mark.parametrize("more", [[], ["--dtype", "fp8"]], ids=["as it is", "8-bit matrices"])
def test_the_check_passes_on_a_device_that_works(
    monkeypatch: pytest.MonkeyPatch,
    neuron: Neuron,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
) -> None:
    monkeypatch.setattr(probe, "TOKENS", 1000)
    monkeypatch.setattr(check, "CALLS", 2)
    model = ROOT / "inference" / "data" / "draft"
    assert check.main([*CHECK, "--model", str(model), "--out", str(tmp_path / "a"), *more]) == 0
    printed = capsys.readouterr().out
    assert "noise: all 16000 values as on the host" in printed
    assert "greedy: 64 of 64 choices equal" in printed
    assert "ms a call" in printed


def test_the_check_fails_on_a_device_that_chooses_otherwise(
    monkeypatch: pytest.MonkeyPatch,
    neuron: Neuron,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(probe, "TOKENS", 1000)
    monkeypatch.setattr(check, "CALLS", 2)
    honest = check.load_neuron

    def swapped(*arguments: Any) -> Any:
        model = honest(*arguments)
        choose = model.choose
        model.choose = lambda segments: [chosen[::-1] for chosen in choose(segments)]  # type: ignore[method-assign]
        return model

    monkeypatch.setattr(check, "load_neuron", swapped)
    model = ROOT / "inference" / "data" / "draft"
    assert check.main([*CHECK, "--model", str(model), "--out", str(tmp_path / "a")]) == 1
    assert "first difference: tree 0" in capsys.readouterr().out


def test_the_check_wants_a_device(
    monkeypatch: pytest.MonkeyPatch, packages: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Neuron(device=False).install(monkeypatch, packages)
    assert check.main([*CHECK, "--model", "anything", "--out", "nowhere"]) == 1
    assert "no Neuron device here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("printed", "kind", "said"),
    [
        ("NeuronCore(s) not available - Requested:nc1-nc1", Busy, "another process has reserved"),
        ("NRT:nrt_allocate_neuron_cores failed", Busy, "another process has reserved"),
        ("nrt_execute failed with status 1003: Numerical Error", Unavailable, "NaN or an infinity"),
        ("INFER_ERROR_SUBTYPE_NUMERICAL", Unavailable, "NaN or an infinity"),
        ("nrt_execute timed out after 120 s, pid 31003", Unavailable, "NEURON_RT_EXEC_TIMEOUT=120"),
        ("libnccom.so is not available", Unavailable, "apt-get install aws-neuronx-collectives"),
        ("Failed to allocate 54.676MB (usage: dma rings) on ND 0", Unavailable, "--rows 1"),
        ('nrt_load status=4 message="Allocation Failure"', Unavailable, "--tree_sizes"),
        ("requires Neuron Driver version 2.0 or greater", Unavailable, "aws-neuronx-dkms, then"),
        ("nd0 could not be initialized", Unavailable, "dmesg says why"),
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
        neuron.saved[key] = (
            size,
            {name: graph for name, graph in graphs.items() if lost not in name},
        )
    with pytest.raises(BadArtifact, match=f"lacks graph {lost}"):
        load_neuron(tmp_path / "a", manifest, lambda line: None)


def test_loading_says_where_it_is(neuron: Neuron, checkpoint: Path, tmp_path: Path) -> None:
    built_model(tmp_path / "a", checkpoint, spec_of(1))
    said: list[str] = []
    load_neuron(tmp_path / "a", build(tmp_path / "a", checkpoint, spec_of(1)), said.append)
    assert said[0] == "loading tiny on 1 trn1 cores"
    assert said[-1].startswith("[4/4] fill_noise ran in ")


def test_the_command_line_serves_an_artefact_for_neuron(
    monkeypatch: pytest.MonkeyPatch,
    neuron: Neuron,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from outrider.cli import main

    monkeypatch.setattr(probe, "TOKENS", 1000)
    model = ROOT / "inference" / "data" / "draft"
    spec = replace(spec_of(2), vocabulary=Tokenizer(model).vocabulary)
    artifact = neuron_artifact(spec, model, tmp_path, command="test", say=lambda line: None)
    flags = [
        "--role",
        "verify_target",
        "--prompt",
        "def",
        "--max_new_tokens",
        "6",
        "--temperature",
        "1",
        "--seed",
        "3",
        "--json",
    ]
    assert main([*flags, "--device", "neuron", "--artifact", str(artifact)]) == 0
    ours = json.loads(capsys.readouterr().out)
    assert (
        main([*flags, "--model", str(model), "--dtype", "float32", "--sequence_length", "64"]) == 0
    )
    assert ours["text"] == json.loads(capsys.readouterr().out)["text"]
    assert main([*flags, "--device", "cpu", "--artifact", str(artifact)]) == 1
    assert "was built for trn1" in capsys.readouterr().err


def test_without_an_artefact_one_is_built_for_this_instance_and_kept(
    monkeypatch: pytest.MonkeyPatch,
    packages: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from outrider.cli import main

    Neuron().install(monkeypatch, packages)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    size = [
        "--batch",
        "1",
        "--sequence_length",
        "16",
        "--max_tree_nodes",
        "2",
        "--dtype",
        "float32",
        "--max_new_tokens",
        "3",
    ]
    flags = [
        "--role",
        "verify_target",
        "--device",
        "neuron",
        "--model",
        str(ROOT / "inference" / "data" / "draft"),
        "--prompt",
        "def",
        *size,
    ]
    assert main(flags) == 1
    assert "no trn1, inf2, trn2 or trn3 instance" in capsys.readouterr().err
    (packages / "product_name").write_text("trn1.2xlarge")
    assert main(flags) == 0
    assert "memory of a rank" in capsys.readouterr().err
    assert main(flags) == 0
    assert "using the artefact in" in capsys.readouterr().err
