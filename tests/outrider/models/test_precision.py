"""The compute type of a checkpoint on a CPU without --dtype, by the CPU's instructions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider.models import devices as precision
from outrider.models.devices import ComputeType, pick
from outrider.models.found_model import EMBEDDED, Capacity
from outrider.models.loading import Checkpoint, find_checkpoint
from outrider.options.commands import parse
from outrider.options.groups import DeviceOptions, QuantizationOptions
from tests.support.models import write_checkpoint_with_tokenizer

F32 = ComputeType(torch.float32)
ROOMY = 1e3


class DraftOptions(DeviceOptions, QuantizationOptions):
    """Flags of a draft on this machine."""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A checkpoint in bfloat16 that is large enough to be measured."""
    sizes = {"hidden_size": 512, "intermediate_size": 4096, "num_hidden_layers": 5}
    directory = write_checkpoint_with_tokenizer(tmp_path_factory.mktemp("models"), **sizes)
    (path,) = directory.glob("*.safetensors")
    save_file({name: tensor.bfloat16() for name, tensor in load_file(path).items()}, path)
    return find_checkpoint(str(directory), "target")


@pytest.fixture
def has(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The processor's instructions."""
    names = list[str]()
    monkeypatch.setattr(precision, "instructions", lambda: names)
    return names


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


def test_a_target_keeps_its_weights_exactly(
    large: Checkpoint, has: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    options = DeviceOptions(device="cpu", threads=1)
    has += ["avx512_vnni", "avx512_bf16"]
    assert large.settled(options, drafts=False) is large
    has.remove("avx512_bf16")
    widened = large.settled(options, drafts=False)
    assert "--dtype auto takes float32" in capsys.readouterr().err
    assert widened.fingerprint() == large.fingerprint()
    assert widened.load(options, Capacity(1, 16, 0, 16)).dtype is torch.float32


def test_a_draft_may_be_rounded_to_int8_and_has_a_fingerprint_of_its_own(
    large: Checkpoint, has: list[str]
) -> None:
    has += ["avx512_vnni"]
    rounded = large.settled(DraftOptions(device="cpu", threads=1), drafts=True)
    assert rounded.quantization == "int8"
    assert rounded.fingerprint() != large.fingerprint()


def test_what_was_asked_for_or_is_small_is_left_as_it_is(large: Checkpoint, has: list[str]) -> None:
    has += ["avx512_vnni"]
    here = DraftOptions(device="cpu")
    for found, options in [
        (large, here.replace(dtype="bfloat16")),
        (large, DraftOptions(device="neuron-legacy")),
        (replace(large, quantization="int4"), here),
        (find_checkpoint(None, "target"), here),
        (find_checkpoint(str(EMBEDDED / "target"), "target"), here),
    ]:
        assert found.settled(options, drafts=True) is found


def test_auto_is_what_no_flag_means() -> None:
    words = ["--role", "target", "--dtype"]
    assert parse([*words, "auto"]) == parse(words[:2])
    assert parse([*words, "float16"]).replace(dtype="auto") == parse(words[:2])
