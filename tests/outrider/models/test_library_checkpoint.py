"""Checkpoints that the transformers library computes, as target and as draft."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from compile.compile_options import CompileOptions
from compile.request import find_checkpoint
from inference.drafters.round_proposer import BestFirst, RoundProposer
from inference.engine.sessions.local_session import LocalSession
from inference.errors import UnsupportedModel
from inference.loop.decode import Step
from inference.sampling import SamplingParams
from inference.text.tokenizer import Tokenizer
from outrider.draft_methods import find_draft
from outrider.models.catalog.models_here import find_models
from outrider.models.found_model import EMBEDDED, Capacity
from outrider.models.loading import Checkpoint, find_target
from outrider.models.other_libraries import LibraryCheckpoint
from outrider.options.groups import DeviceOptions, DraftModelOptions, QuantizationOptions
from outrider.options.roles import TargetRole
from outrider.target.target import load_served
from tests.support.families import config_of
from tests.support.pairs import alone, speculated
from tests.support.refusals import assert_refused

PROMPT = list(range(40, 60))


def saved(directory: Path, seed: int, noise: float = 0.0) -> Path:
    """A tiny mixture of experts with the embedded pair's tokenizer."""
    fields = {"vocab_size": Tokenizer(EMBEDDED / "target").vocabulary, "eos_token_id": 0}
    torch.manual_seed(seed)
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
    return saved(tmp_path_factory.mktemp("experts"), 1)


def role(model: Path | None, **given: Any) -> TargetRole:
    name = None if model is None else str(model)
    return TargetRole(
        model=name, port=0, batch=1, max_tree_nodes=8, sequence_length=64, device="cpu", **given
    )


def test_a_mixture_of_experts_is_target_and_draft(experts: Path, tmp_path: Path) -> None:
    """Nothing names the backend: our decoder does not know the architecture."""
    served = load_served(role(experts))
    found = find_draft(DraftModelOptions(draft_model=str(saved(tmp_path, 1, 0.01))))
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
        (lambda: find_checkpoint(compiled), ["qwen3_moe", "llama, mistral, qwen2, qwen3"]),
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
