"""What is shown while a model is loaded, in which type it is computed, and drafts of fewer bits."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference.backends.neuron import sdk as neuron_sdk
from inference.model.checkpoints.checkpoint import Loading
from inference.model.quantized import Quantization
from outrider.draft_methods import find_draft
from outrider.models import devices as precision
from outrider.models.devices import ComputeType, pick
from outrider.models.found_model import EMBEDDED, Capacity
from outrider.models.loading import PREFILL_NODES, find_checkpoint, loading_status
from outrider.options.groups import DeviceOptions, QuantizationOptions
from outrider.options.roles import TargetRole
from outrider.target.target import load_served
from tests.support.commands import Terminal
from tests.support.models import write_checkpoint_with_tokenizer

SMALL: dict[str, Any] = {"port": 0, "batch": 1, "max_tree_nodes": 8, "sequence_length": 64}


def load(quantization: Quantization | None = None) -> None:
    options = QuantizationOptions(draft_quantization=quantization)
    find_draft(options).load(DeviceOptions(), Capacity(1, 64, 8, PREFILL_NODES))


def test_a_terminal_shows_that_a_model_is_loading_and_a_line_afterwards(terminal: Terminal) -> None:
    with terminal:
        with loading_status("a [model]") as report:
            assert terminal.shown[0].startswith("loading a [model] ")
            report(Loading(1, 3, 4_000_000_000, 8_000_000_000))
        assert terminal.everything == ""
        load()
    assert re.fullmatch(r"outrider-embedded-draft: .* loaded in [0-9.]+ s", terminal.everything)


def test_elsewhere_a_large_model_is_announced_and_a_small_one_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    load("int8")
    (line,) = capsys.readouterr().err.splitlines()
    assert "float32, int8 matrices on cpu" in line
    with loading_status("a model") as report:
        for read in (0, 1, 2):
            report(Loading(1, 3, read, 8_000_000_000))
    assert capsys.readouterr().err == "loading a model: 3 files, 8.00 GB\n"


@pytest.mark.parametrize(("device", "told"), [("auto", True), ("cpu", False)])
def test_a_target_that_takes_the_cpu_unasked_beside_a_neuron_device_says_so(
    device: Literal["auto", "cpu"],
    told: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "neuron0").touch()
    monkeypatch.setattr(neuron_sdk, "DEVICE", tmp_path / "neuron0")
    load_served(TargetRole(**SMALL, device=device))
    words = "has an unused Neuron device: --device neuron uses it"
    assert (words in capsys.readouterr().err) == told


def test_a_target_without_an_end_of_text_is_loaded(tmp_path: Path) -> None:
    model = write_checkpoint_with_tokenizer(tmp_path, eos_token_id=None)
    load_served(TargetRole(model=str(model), **SMALL, device="cpu"))


F32 = ComputeType(torch.float32)
ROOMY = 1e3


class DraftOptions(DeviceOptions, QuantizationOptions):
    """Flags of a draft on this machine."""


@pytest.mark.parametrize(
    ("own", "has", "room", "picked"),
    [
        (torch.bfloat16, ["avx2"], ROOMY, F32),
        (torch.bfloat16, ["avx2"], 8.0, F32),
        (torch.bfloat16, ["avx2"], 7.9, None),  # it would take over half of the memory
        (torch.bfloat16, ["avx512_bf16"], ROOMY, None),
        (torch.float16, ["avx512_bf16"], ROOMY, F32),
        (torch.float32, [], ROOMY, None),
        (torch.float64, ["amx_int8"], ROOMY, None),
        (torch.bfloat16, ["amx_int8", "amx_bf16"], ROOMY, ComputeType(torch.bfloat16, "int8")),
        (torch.float32, ["avx_vnni"], ROOMY, ComputeType(torch.float32, "int8")),
    ],
)
def test_the_instructions_decide(
    own: torch.dtype, has: list[str], room: float, picked: ComputeType | None
) -> None:
    assert pick(own, has, room) == picked


def test_a_target_keeps_its_weights_exactly_and_a_large_draft_may_be_rounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"hidden_size": 512, "intermediate_size": 4096, "num_hidden_layers": 5}
    directory = write_checkpoint_with_tokenizer(tmp_path, **sizes)
    (path,) = directory.glob("*.safetensors")
    save_file({name: tensor.bfloat16() for name, tensor in load_file(path).items()}, path)
    large, has = find_checkpoint(str(directory), "target"), ["avx512_vnni", "avx512_bf16"]
    monkeypatch.setattr(precision, "instructions", lambda: has)
    options = DraftOptions(device="cpu", threads=1)
    assert large.settled(options, drafts=False) is large
    has.remove("avx512_bf16")
    widened = large.settled(options, drafts=False)
    assert "--dtype auto takes float32" in capsys.readouterr().err
    assert widened.fingerprint() == large.fingerprint()
    assert widened.load(options, Capacity(1, 16, 0, 16)).dtype is torch.float32
    rounded = large.settled(options, drafts=True)
    assert rounded.quantization == "int8"
    assert rounded.fingerprint() != large.fingerprint()
    for found, given in [  # what was asked for, or is small
        (large, options.replace(dtype="bfloat16")),
        (large, DraftOptions(device="neuron-legacy")),
        (replace(large, quantization="int4"), options),
        (find_checkpoint(None, "target"), options),
        (find_checkpoint(str(EMBEDDED / "target"), "target"), options),
    ]:
        assert found.settled(given, drafts=True) is found


def test_drafts_that_compute_differently_have_fingerprints_of_their_own() -> None:
    kinds: list[Quantization | None] = [None, "int8", "int4"]
    drafts = [find_draft(QuantizationOptions(draft_quantization=kind)).model for kind in kinds]
    assert len({draft.fingerprint()[:16] for draft in drafts}) == len(drafts)
    assert all(len(draft.fingerprint()) == 32 for draft in drafts)
