"""--draft block: a checkpoint in PARD's published format is found, loaded and drafts; others are
refused in one line.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch

from grpc_comm.server.server import BackgroundServer
from inference.backends import BlockModel, Masks
from inference.drafters.block_proposer import BlockProposer, proposers_on
from inference.engine.engine import Engine
from inference.engine.local_session import LocalSession
from inference.errors import UnsupportedModel
from inference.model.config import read_config
from inference.order import Decode
from inference.planner.prices import Prices
from inference.sampling import SamplingParams
from outrider.cli import main
from outrider.draft_methods import block, find_draft
from outrider.draft_methods.block import (
    PUBLISHED_POSITIONS,
    BlockCheckpoint,
    DependentCheckpoint,
)
from outrider.models import EMBEDDED, find_checkpoint
from outrider.options.roles import DraftRole, FusedTargetRole
from outrider.target import load_target
from tests.support.drafts import alone, knowledge, text_of
from tests.support.models import tiny_model, write_checkpoint_with_tokenizer
from tests.support.pairs import prompt_of
from tests.support.pard_files import random_weight, states_fields, write_projection
from tests.support.scripted_models import ScriptedModel, useless

PARD: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 520,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "pard_token": 515,
    "spd_type": "pard",
}
"""config.json as PARD publishes it, at a tiny size: ids beyond the tokenizer's are the masks'."""

PARD2 = PARD | states_fields([-1, -2], 32)


def target(directory: Path) -> Engine:
    write_checkpoint_with_tokenizer(directory, seed=7)
    model = find_checkpoint(str(directory), "target").load(
        DraftRole(device="cpu"), rows=1, sequence_length=128, spare=64, max_nodes=64
    )
    return Engine(model, sequence_length=128, max_tree_nodes=64, vocabulary=512)


def found(directory: Path, **changes: Any) -> BlockCheckpoint:
    write_checkpoint_with_tokenizer(directory, **PARD | changes)
    made = find_draft(DraftRole(draft="block", draft_model=str(directory)))
    assert isinstance(made, BlockCheckpoint)
    return made


@pytest.mark.parametrize("config", [PARD, PARD2], ids=["PARD", "PARD-2"])
def test_a_published_checkpoint_says_which_token_is_its_mask(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    assert found(tmp_path, **config).masks == Masks(515, PUBLISHED_POSITIONS - 1)


def test_a_checkpoint_may_say_how_many_tokens_a_call_names(tmp_path: Path) -> None:
    assert found(tmp_path, para_num=4).masks == Masks(515, 3)


@pytest.mark.parametrize("config", [PARD, PARD2], ids=["PARD", "PARD-2"])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_a_published_checkpoint_drafts_and_the_text_is_the_targets_own(
    tmp_path: Path, config: dict[str, Any], temperature: float
) -> None:
    role = DraftRole(draft="block", draft_model=str(tmp_path / "pard"), device="cpu")
    model = found(tmp_path / "pard", **config).load(
        role, rows=1, sequence_length=128, spare=300, max_nodes=256
    )
    assert isinstance(model, BlockModel)
    assert model.dtype == torch.float32
    served, prompt = target(tmp_path / "target"), prompt_of(20)
    params = SamplingParams(temperature, seed=11)
    proposer = proposers_on(model)(model, 0, knowledge(), Prices(), room=300)
    assert isinstance(proposer, BlockProposer)
    session, order = LocalSession(served), Decode(len(prompt) + 30)
    made = text_of(prompt, params, session, order, [proposer])
    assert made == alone(LocalSession(served), prompt, params, 30)
    assert proposer.ranked > proposer.calls  # masks were computed


def test_a_checkpoint_without_a_mask_is_refused_with_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"no pard_token: .*--draft model takes any other"):
        found(tmp_path, pard_token=None)


@pytest.mark.parametrize(
    ("field", "value"), [("pard_token", 520), ("pard_token", -1), ("para_num", 1), ("para_num", 99)]
)
def test_a_mask_that_cannot_be_is_refused(tmp_path: Path, field: str, value: int) -> None:
    with pytest.raises(UnsupportedModel, match=rf"{field} is {value}: an integer from"):
        found(tmp_path, **{field: value})


# --- beside a target
# --------------------------------------------------------------------------------------------------


def pard2(directory: Path, states: tuple[int, ...] = (-1, -3, -6)) -> str:
    """A random PARD-2 checkpoint for the embedded target."""
    width = read_config(EMBEDDED / "target").hidden_size
    write_checkpoint_with_tokenizer(directory, **PARD | states_fields(states, width))
    write_projection(directory, random_weight(16, len(states) * width))
    return str(directory)


@pytest.mark.parametrize("emulated", [False, True], ids=["plain", "emulated"])
def test_a_dependent_draft_makes_the_targets_own_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], emulated: bool
) -> None:
    draft, more = pard2(tmp_path), dict[str, Any]()
    if emulated:
        more["emulate"] = "llama-3.1-8b-trn1.2xlarge-measured"
    options = FusedTargetRole(
        port=0, batch=1, sequence_length=256, draft="block", draft_model=draft, **more
    )
    with BackgroundServer(load_target(options)) as server:
        flags = ["--prompt", "def main(argv):", "--max_new_tokens", "24", "--seed", "3"]
        command = ["--role", "fused_client", "--port", str(server.address.port), *flags]
        assert main([*command, "--temperature", "0.8", "--json", "--baseline"]) == 0
    said = capsys.readouterr()
    record = json.loads(said.out)
    assert record["token_ids"] == record["baseline"]["token_ids"]
    assert "reads states 6, 4, 1 of the 6 layers of its target" in said.err


def test_a_dependent_draft_is_refused_beside_a_target_that_it_was_not_made_for(
    tmp_path: Path,
) -> None:
    options = FusedTargetRole(
        port=0,
        batch=1,
        sequence_length=256,
        draft="block",
        draft_model=pard2(tmp_path, (-1, -8, -16, -24)),
    )
    with pytest.raises(UnsupportedModel, match=r"\[1\] is -8: -7 to 6, a state of this target of"):
        load_target(options)


def test_without_states_the_same_checkpoint_drafts_as_it_does_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a client's machine, or beside a target that keeps none."""
    role = DraftRole(draft="block", draft_model=pard2(tmp_path))
    graphs = ScriptedModel(useless, rows=1, capacity=100)
    for target in (None, graphs):
        assert isinstance(block.find(role, target), BlockCheckpoint)
        assert "drafts without its target's states, which are not kept" in capsys.readouterr().err


def test_a_checkpoint_whose_projection_is_absent_drafts_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    role = FusedTargetRole(draft="block", draft_model=pard2(tmp_path))
    (tmp_path / "warp_model.bin").unlink()
    assert isinstance(block.find(role, tiny_model()), BlockCheckpoint)
    assert "without its target's states: it has no warp_model.bin" in capsys.readouterr().err


def test_a_projection_is_taken_from_the_hub_for_a_draft_beside_its_target_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pard2(tmp_path)
    asked = list[bool]()

    def download(name: str, **options: Any) -> str:
        asked.append("warp_model.bin" in options["allow_patterns"])
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    role = FusedTargetRole(draft="block", draft_model="amd/a-draft")
    block.find(role, None)
    assert asked == [False]
    assert isinstance(block.find(role, tiny_model()), DependentCheckpoint)
    assert asked == [False, False, True]


def test_a_dependent_draft_has_profiles_of_its_own(tmp_path: Path) -> None:
    """Its calls take longer than those of the same checkpoint alone."""
    role = FusedTargetRole(draft="block", draft_model=pard2(tmp_path))
    prints = {block.find(role, target).fingerprint() for target in (None, tiny_model())}
    assert len(prints) == 2
