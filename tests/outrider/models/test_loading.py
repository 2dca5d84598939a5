"""What is shown while a model is loaded, in which type it is computed, drafts of fewer bits, and
checkpoints that the transformers library computes.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from compile import request
from compile.compile_options import CompileOptions
from inference.backends.neuron import sdk as neuron_sdk
from inference.drafters.round_proposer import BestFirst, RoundProposer
from inference.engine.sessions.local_session import LocalSession
from inference.errors import UnsupportedModel
from inference.loop.decode import Step
from inference.model.checkpoints.checkpoint import Loading
from inference.model.quantized import Quantization
from inference.sampling import SamplingParams
from inference.text.tokenizer import Tokenizer
from outrider.draft_methods import find_draft
from outrider.models import devices as precision
from outrider.models.catalog.models_here import find_models
from outrider.models.devices import ComputeType, pick
from outrider.models.found_model import EMBEDDED, Capacity
from outrider.models.loading import (
    PREFILL_NODES,
    Checkpoint,
    find_checkpoint,
    find_target,
    loading_status,
)
from outrider.models.other_libraries import LibraryCheckpoint
from outrider.options.groups import DeviceOptions, DraftModelOptions, QuantizationOptions
from outrider.options.roles import TargetRole
from outrider.target.target import load_served
from tests.support.commands import Terminal
from tests.support.families import config_of
from tests.support.models import write_checkpoint_with_tokenizer
from tests.support.pairs import alone, speculated
from tests.support.refusals import assert_refused

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


PROMPT = list(range(40, 60))


def saved(directory: Path, noise: float = 0.0) -> Path:
    """A tiny mixture of experts with the embedded pair's tokenizer."""
    fields = {"vocab_size": Tokenizer(EMBEDDED / "target").vocabulary, "eos_token_id": 0}
    torch.manual_seed(1)
    config = AutoConfig.for_model(**config_of("qwen3_moe") | fields)
    library: Any = AutoModelForCausalLM.from_config(config).float()
    for scale in (0.2, noise):
        for parameter in library.parameters():
            parameter.data += scale * torch.randn(parameter.shape)
    library.save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(EMBEDDED / "target" / name, directory / name)
    return directory


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("experts"))


def role(model: Path | None, **given: Any) -> TargetRole:
    name = None if model is None else str(model)
    return TargetRole(model=name, device="cpu", **SMALL, **given)


def test_a_mixture_of_experts_is_target_and_draft(experts: Path, tmp_path: Path) -> None:
    """Nothing names the backend: our decoder does not know the architecture."""
    served = load_served(role(experts))
    found = find_draft(DraftModelOptions(draft_model=str(saved(tmp_path, 0.01))))
    assert isinstance(found.model, LibraryCheckpoint)
    draft = found.load(DeviceOptions(device="cpu"), Capacity(1, 64, 64, 64))
    assert draft.model is not None
    steps = list[Step]()
    for params in (SamplingParams(), SamplingParams(1.0, seed=5)):
        own = alone(LocalSession(served.engine), PROMPT, params, 16)
        proposer = RoundProposer(draft.model, BestFirst(7, 3), room=16)
        session = LocalSession(served.engine)
        assert speculated(session, proposer, PROMPT, params, 16, steps.append) == own
    assert max(len(step.tokens) for step in steps) > 1  # it was right at times
    assert served.description.model == str(experts)


def test_the_library_computes_what_our_decoder_computes() -> None:
    roles = role(None), role(None, backend="transformers")
    ours, theirs = map(find_target, roles)
    assert isinstance(ours, Checkpoint)
    assert isinstance(theirs, LibraryCheckpoint)
    assert ours.fingerprint() != theirs.fingerprint()
    texts = [
        alone(LocalSession(load_served(options).engine), PROMPT, SamplingParams(), 12)
        for options in roles
    ]
    assert texts[0] == texts[1]


def test_what_our_decoder_alone_does_is_refused_for_others(experts: Path) -> None:
    reduced = QuantizationOptions(draft_model=str(experts), draft_quantization="int8")
    offloaded, ours = role(experts, layer_offload="disk"), role(experts, backend="outrider")
    compiled = CompileOptions(model=str(experts), dry_run=True)
    both = partial(role, experts, backend="transformers", layer_offload="disk")
    library = "transformers library"
    assert_refused(lambda: find_draft(reduced), ["--draft_quantization", library])
    assert_refused(lambda: find_target(offloaded), ["--layer_offload", library])
    assert_refused(both, ["layer_offload"])
    neuron = partial(find_target(role(experts)).load, DeviceOptions(device="neuron"))
    refused: list[tuple[Callable[[], object], list[str]]] = [
        (lambda: find_target(ours), ["qwen3_moe", "qwen2", "llama"]),
        (lambda: neuron(Capacity(1, 64, 8, 64)), ["neuron", "qwen3_moe", "llama, mistral"]),
        (lambda: request.find_checkpoint(compiled), ["qwen3_moe", "llama, mistral, qwen2, qwen3"]),
    ]
    for call, shown in refused:
        assert_refused(call, shown, UnsupportedModel)


def test_list_shows_which_models_can_be_used(experts: Path, tmp_path: Path) -> None:
    foreign = {"model_type": "mamba", "max_position_embeddings": 64}
    (tmp_path / "config.json").write_text(json.dumps(foreign), encoding="utf-8")
    *_, usable, refused = find_models([experts, tmp_path])
    assert usable.refusal == ""
    assert usable.parameters > 0
    assert "mamba" in refused.refusal
