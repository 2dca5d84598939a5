"""Targets on transformers-neuronx: chains are exact, everything else is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from inference.backends.eager import EagerModel
from inference.backends.legacy_neuron import LegacyNeuronModel, load_legacy_neuron
from inference.drafters.round_proposer import BestFirst
from inference.engine.engine import Engine
from inference.engine.local_session import LocalSession
from inference.errors import (
    Busy,
    InvalidRequest,
    MissingExtra,
    OutriderError,
    Unavailable,
    UnsupportedModel,
)
from inference.model.config import read_config
from inference.sampling import SamplingParams
from inference.tree import TokenTree
from outrider.models.capacity import Capacity
from outrider.models.directories import EMBEDDED
from outrider.options.roles import DraftRole, TargetRole
from tests.support.drafts import alone, rounds, speculated
from tests.support.equality import NearTies, assert_same_text
from tests.support.fake_tnx import VERSIONS, LegacyImage
from tests.support.models import loaded, sequence_after, tiny_decoder, write_checkpoint
from tests.support.refusals import assert_refused

LENGTH, CHAIN, VOCABULARY = 96, 6, 59
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.fixture
def image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LegacyImage:
    return LegacyImage().install(monkeypatch, tmp_path / "packages")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("legacy") / "model")


def load(directory: Path, **changes: Any) -> LegacyNeuronModel:
    asked = {
        "sequence_length": LENGTH,
        "vocabulary": VOCABULARY,
        "chain": CHAIN,
        "tensor_parallel": 2,
        "dtype": torch.float32,
    }
    return load_legacy_neuron(
        directory, read_config(directory), **{**asked, "say": lambda line: None, **changes}
    )


def engine_of(model: Any) -> Engine:
    return Engine(model, sequence_length=LENGTH, max_tree_nodes=CHAIN, vocabulary=VOCABULARY)


def prompt_of(length: int) -> list[int]:
    return np.random.default_rng(length).integers(0, VOCABULARY, length).tolist()


def test_a_node_alone_runs_in_the_program_of_a_chain(image: LegacyImage, checkpoint: Path) -> None:
    """So what is chosen does not depend on how much was drafted, whatever a program's rounding."""
    legacy = load(checkpoint)
    (model,) = image.models
    assert [length for _, length in model.calls] == [CHAIN, 128]  # both warmed up
    sequence = sequence_after(legacy, prompt_of(50))
    for tokens in ([7], [7, 8, 9], list(range(CHAIN))):
        sequence.choose(TokenTree.chain(tokens))
    assert model.calls[2:] == [(0, 128), *[(50, CHAIN)] * 3]


def test_a_sequence_may_be_filled_to_its_last_token(image: LegacyImage, checkpoint: Path) -> None:
    """The padding of the longest call still finds slots behind it."""
    legacy = load(checkpoint)
    made = alone(LocalSession(engine_of(legacy)), prompt_of(LENGTH - 2), SamplingParams(), 2)
    assert len(made) == 2
    last = sequence_after(legacy, prompt_of(legacy.capacity - 7))
    assert len(last.choose(TokenTree.chain(range(7)))) == 7


def test_of_a_branching_tree_the_likeliest_chain_is_verified(
    image: LegacyImage, checkpoint: Path
) -> None:
    legacy, draft = engine_of(load(checkpoint)), tiny_decoder(99, VOCABULARY)
    own = alone(LocalSession(legacy), prompt_of(9), SamplingParams(), 30)
    proposer = rounds(draft, BestFirst(5, 2))
    made = speculated(LocalSession(legacy), proposer, prompt_of(9), SamplingParams(), 30)
    assert made == own


def test_a_branching_tree_is_refused_by_the_model(image: LegacyImage, checkpoint: Path) -> None:
    sequence = sequence_after(load(checkpoint), prompt_of(9))
    tree = TokenTree(np.array([5, 6, 7]), np.array([-1, 0, 0]))
    assert_refused(lambda: sequence.choose(tree), ["chains only"])


def test_nodes_that_do_not_go_on_in_the_cache_fail(image: LegacyImage, checkpoint: Path) -> None:
    legacy = load(checkpoint)
    sequence = sequence_after(legacy, prompt_of(5))
    segment = sequence.prepare(TokenTree.chain([3, 4]))
    for change in (
        {"slots": segment.slots + 1},
        {"positions": segment.positions + 1},
        {"context": np.array([[True, True, False, True, True]])},
        {"context": np.repeat(segment.context, 2, axis=0)},
    ):
        with pytest.raises(InvalidRequest, match="continue the cache"):
            legacy.choose([segment._replace(**change)])
    assert len(legacy.choose([segment])[0].tokens) == 2


WITHOUT = {name: number for name, number in VERSIONS.items() if name != "transformers-neuronx"}
REFUSED: list[tuple[dict[str, Any], type[OutriderError], list[str]]] = [
    (
        {"versions": VERSIONS | {name: number}},
        MissingExtra,
        [f"found here: {name} {number}", "needs transformers-neuronx 0.13", "pip install"],
    )
    for name, number in (
        ("transformers-neuronx", "0.12.313"),
        ("transformers-neuronx", "0.1"),
        ("torch-neuronx", "2.9.0.2.15.32035"),
        ("torch-neuronx", "2.8.0.2.11.1"),
        ("torch-neuronx", "1.0"),
        ("transformers", "5.23.0"),
    )
] + [
    ({"versions": WITHOUT}, MissingExtra, ["transformers-neuronx is not installed", "pip install"]),
    ({"device": False}, InvalidRequest, ["no Neuron device"]),
    ({"instance": "trn2.3xlarge"}, InvalidRequest, ["trn1 and inf2", "trn2"]),
    ({"busy": True}, Busy, ["another process has reserved them"]),
    ({"fails": "status 1003: Numerical Error"}, Unavailable, ["NaN or an infinity"]),
]


@pytest.mark.parametrize(("image", "error", "shown"), REFUSED)
def test_an_image_that_cannot_serve_is_refused_by_what_was_found(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    checkpoint: Path,
    image: dict[str, Any],
    error: type[OutriderError],
    shown: list[str],
) -> None:
    LegacyImage(**image).install(monkeypatch, tmp_path / "packages")
    assert_refused(lambda: load(checkpoint), shown, error)


@pytest.mark.parametrize(
    "versions",
    [
        {"torch-neuronx": "2.6.0.2.7.5413"},
        {"torch-neuronx": "2.7.0.2.9.9357", "transformers-neuronx": "0.13.1216"},
    ],
)
def test_images_from_sdk_2_23_on_are_accepted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, checkpoint: Path, versions: dict[str, str]
) -> None:
    LegacyImage(versions=VERSIONS | versions).install(monkeypatch, tmp_path / "packages")
    assert load(checkpoint).rows == 1


RARE_ROPE = {"rope_theta": 500000.0, "rope_type": "default"}


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"model_type": "qwen2"}, "model_type"),
        ({"head_dim": 8}, "head_dim"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling"),
        ({"rope_theta": None, "rope_parameters": RARE_ROPE}, "rope_theta is 500000.0"),
        ({"rope_scaling": None, "rope_parameters": LLAMA3}, "rope_scaling.factor is 8.0"),
    ],
    ids=str,
)
def test_a_checkpoint_that_would_be_computed_wrongly_is_refused_by_its_field(
    image: LegacyImage, tmp_path: Path, changes: dict[str, Any], shown: str
) -> None:
    directory = write_checkpoint(tmp_path / "model", **changes)
    assert_refused(lambda: load(directory), [f"config.json field {shown}"], UnsupportedModel)


@pytest.mark.parametrize(
    "changes", [{"rope_scaling": LLAMA3}, {"tie_word_embeddings": True}, {"rope_theta": 500000.0}]
)
def test_other_llamas_are_served_exactly(
    image: LegacyImage, tmp_path: Path, ties: NearTies, changes: dict[str, Any]
) -> None:
    directory = write_checkpoint(tmp_path / "model", **changes)
    params, prompt = SamplingParams(1.0, seed=4), prompt_of(30)
    target = loaded(directory, LENGTH, VOCABULARY)
    plain = engine_of(EagerModel(target, rows=1, capacity=LENGTH + CHAIN, max_nodes=16))
    legacy, reference = engine_of(load(directory)), alone(LocalSession(plain), prompt, params, 30)
    assert_same_text(
        target,
        prompt,
        params,
        reference,
        lambda text, n: alone(LocalSession(legacy), text, params, n),
        ties,
    )


@pytest.mark.parametrize("chain", [0, 129])
def test_chains_that_no_call_could_hold_are_refused(
    image: LegacyImage, checkpoint: Path, chain: int
) -> None:
    assert_refused(lambda: load(checkpoint, chain=chain), [f"--max_tree_nodes {chain}"])


def test_the_command_line_serves_it_and_says_chains_only(image: LegacyImage) -> None:
    from outrider.target.target import load_target

    target = load_target(
        TargetRole(device="neuron-legacy", max_tree_nodes=8, sequence_length=256, port=0)
    )
    (model,) = image.models
    assert (model.tp_degree, model.amp, Path(model.directory)) == (2, "f32", EMBEDDED / "target")
    assert (target.description.rows, target.description.max_tree_nodes) == (1, 8)
    assert target.description.device == "neuron, chains only"


def test_a_draft_does_not_run_on_it(image: LegacyImage) -> None:
    from outrider.draft_methods import find_draft

    options = DraftRole(device="neuron-legacy")
    with pytest.raises(InvalidRequest, match="cpu or cuda"):
        find_draft(options).load(options, Capacity(1, 64, 1, 8))
