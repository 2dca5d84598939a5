"""What a model is computed in on a CPU without --dtype: the quickest that was measured, of what
its use allows. It is kept for later starts.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference.times_file import read_profile
from outrider.models import precision
from outrider.models.capacity import Capacity
from outrider.models.directories import EMBEDDED
from outrider.models.loading import Checkpoint, find_checkpoint
from outrider.models.precision import MARGIN, NODES, ComputeType, candidates, choice_line, pick
from outrider.options.groups import DeviceOptions, QuantizationOptions
from outrider.options.parsing import parse
from tests.support.models import write_checkpoint_with_tokenizer

BF16, F32 = ComputeType(torch.bfloat16), ComputeType(torch.float32)
INT8 = ComputeType(torch.bfloat16, "int8")
ROOMY = 1e3
AVX2 = {
    BF16: {(1, 1): 0.107, (1, 4): 0.64, (1, 16): 2.35},
    F32: {(1, 1): 0.118, (1, 4): 0.17, (1, 16): 0.39},
    INT8: {(1, 1): 0.159, (1, 4): 0.21, (1, 16): 0.78},
}


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
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where arithmetics are kept in this test, and nothing is yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "outrider" / "profiles"


def keep(cache: Path, quick: str) -> dict[Path, bytes]:
    """Let the kept files say that this arithmetic is the quickest; return their bytes."""
    for path in cache.iterdir():
        kept = json.loads(path.read_text())
        seconds = 0.1 if kept["name"].endswith(f" in {quick}") else 1.0
        path.write_text(json.dumps(kept | {"times": [[1, nodes, seconds] for nodes in NODES]}))
    return {path: path.read_bytes() for path in cache.iterdir()}


@pytest.mark.parametrize(
    ("own", "room", "drafts", "possible"),
    [
        (torch.bfloat16, ROOMY, False, [BF16, F32]),
        (torch.float32, ROOMY, False, [F32]),
        (torch.float16, ROOMY, False, [ComputeType(torch.float16), F32]),
        (torch.float64, ROOMY, True, [ComputeType(torch.float64)]),
        (torch.bfloat16, ROOMY, True, [BF16, F32, INT8]),
        (torch.float32, ROOMY, True, [F32, BF16, ComputeType(torch.float32, "int8")]),
        (torch.bfloat16, 7.9, False, [BF16]),  # it would take over half of the memory
        (torch.bfloat16, 8.0, False, [BF16, F32]),
    ],
)
def test_a_target_keeps_its_weights_exactly_and_a_draft_may_round_them(
    own: torch.dtype, room: float, drafts: bool, possible: list[ComputeType]
) -> None:
    assert candidates(own, room, drafts=drafts, int8=drafts) == possible


def test_the_quickest_is_taken_for_the_nodes_that_count() -> None:
    assert pick(AVX2, (1, 16)) == F32
    assert pick({BF16: AVX2[BF16], INT8: AVX2[INT8]}, (1, 4)) == INT8
    assert pick({BF16: AVX2[BF16], INT8: AVX2[INT8]}, (1, 1)) == BF16


@pytest.mark.parametrize(("factor", "picked"), [(1.01, F32), (0.99, BF16)])
def test_the_checkpoints_own_stays_unless_another_is_clearly_quicker(
    factor: float, picked: ComputeType
) -> None:
    own = {shape: seconds * MARGIN * factor for shape, seconds in AVX2[F32].items()}
    assert pick({BF16: own, F32: AVX2[F32]}, (1, 16)) == picked


def test_the_line_names_the_choice_the_reason_and_what_was_measured() -> None:
    times = {BF16: AVX2[BF16], F32: AVX2[F32]}
    assert choice_line(times, F32, (1, 16)) == (
        "--dtype auto takes float32: faster than its own bfloat16 for 1 and 16 nodes (ms of a "
        "forward pass's products at 1, 4, 16 nodes: bfloat16 107, 640, 2350; float32 118, 170, 390)"
    )
    assert "takes bfloat16: nothing is clearly faster" in choice_line(times, BF16, (1, 16))


@pytest.mark.parametrize("quick", ["bfloat16", "float32"])
def test_a_target_is_measured_once_and_computed_in_the_kept_choice(
    large: Checkpoint, cache: Path, capsys: pytest.CaptureFixture[str], quick: str
) -> None:
    options = DeviceOptions(device="cpu", threads=1)
    large.settled(options, drafts=False)
    assert {read_profile(path).name.split()[-1] for path in cache.iterdir()} == {
        "bfloat16",
        "float32",
    }
    assert capsys.readouterr().err.count("--dtype auto takes ") == 1
    kept = keep(cache, quick)
    chosen = large.settled(options, drafts=False)
    assert {path: path.read_bytes() for path in cache.iterdir()} == kept
    assert f"--dtype auto takes {quick}: " in capsys.readouterr().err
    assert chosen.fingerprint() == large.fingerprint()
    model = chosen.load(options, Capacity(1, 16, 0, 16))
    assert model.dtype is getattr(torch, quick)


def test_a_draft_may_be_rounded_to_int8_and_is_then_told_from_the_whole_one(
    large: Checkpoint, cache: Path
) -> None:
    options = DraftOptions(device="cpu", threads=1)
    large.settled(options, drafts=True)
    keep(cache, "int8 in bfloat16")
    chosen = large.settled(options, drafts=True)
    assert isinstance(chosen, Checkpoint)
    assert chosen.quantization == "int8"
    assert chosen.fingerprint() != large.fingerprint()


def test_on_a_machine_too_busy_to_compare_nothing_is_picked_or_kept(
    large: Checkpoint,
    cache: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(precision, "MAX_SECONDS", 0.0)
    chosen = large.settled(DeviceOptions(device="cpu", threads=1), drafts=False)
    assert "--dtype auto stays at bfloat16: " in capsys.readouterr().err
    assert chosen.fingerprint() == large.fingerprint()
    assert not cache.exists()


def test_what_was_asked_for_or_is_small_is_left_as_it_is(large: Checkpoint, cache: Path) -> None:
    here = DraftOptions(device="cpu")
    for found, options in [
        (large, here.replace(dtype="bfloat16")),
        (large, DraftOptions(device="neuron-legacy")),
        (replace(large, quantization="int4"), here),
        (find_checkpoint(None, "target"), here),
        (find_checkpoint(str(EMBEDDED / "target"), "target"), here),
    ]:
        assert found.settled(options, drafts=True) is found
    assert not cache.exists()


def test_auto_is_what_no_flag_means() -> None:
    words = ["--role", "target", "--dtype"]
    assert parse([*words, "auto"]) == parse(words[:2])
    assert parse([*words, "float16"]).replace(dtype="auto") == parse(words[:2])
