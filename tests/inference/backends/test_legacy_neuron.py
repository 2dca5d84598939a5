"""Targets on transformers-neuronx: chains are exact, everything else is refused. Through a
strict stand-in; not yet run on hardware.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from inference.backends.eager import EagerModel
from inference.backends.legacy_neuron import LegacyNeuronModel, load_legacy_neuron
from inference.backends.sequence import ModelSequence
from inference.decode import Step
from inference.drafters.round_proposer import BestFirst, Chain
from inference.engine.engine import Engine
from inference.engine.local_session import LocalSession
from inference.errors import (
    Busy,
    InvalidRequest,
    LimitExceeded,
    MissingExtra,
    OutriderError,
    Unavailable,
    UnsupportedModel,
)
from inference.model.checkpoint import load_decoder
from inference.model.config import read_config
from inference.model.decoder import Decoder
from inference.proposer import NOBODY
from inference.sampling import SamplingParams
from inference.tree import TokenTree
from outrider.models.loading import EMBEDDED
from outrider.models.sequence_length import Capacity
from outrider.options.roles import DraftRole, TargetRole
from tests.support.drafts import alone, nudged, rounds, speculated
from tests.support.equality import NearTies, assert_same_text
from tests.support.fake_tnx import SIGNATURES, VERSIONS, LegacyImage, signature
from tests.support.models import tiny_decoder, write_checkpoint

LENGTH, CHAIN, VOCABULARY = 96, 6, 59
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SAMPLINGS = [
    SamplingParams(),
    SamplingParams(0.7, seed=11),
    SamplingParams(1.0, seed=2**62 + 5),
    SamplingParams(0.7, top_p=0.9, seed=13),
    SamplingParams(1.0, top_k=20, seed=15),
]


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


def whole(directory: Path) -> Decoder:
    return load_decoder(
        directory,
        positions=LENGTH,
        vocabulary=VOCABULARY,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


def engine_of(model: Any) -> Engine:
    return Engine(model, sequence_length=LENGTH, max_tree_nodes=CHAIN, vocabulary=VOCABULARY)


def prompt_of(length: int) -> list[int]:
    return np.random.default_rng(length).integers(0, VOCABULARY, length).tolist()


def test_the_stand_in_has_the_packages_signatures() -> None:
    assert {name: signature(name) for name in SIGNATURES} == SIGNATURES


@pytest.mark.parametrize(
    "params", SAMPLINGS, ids=lambda params: f"T{params.temperature}-p{params.top_p}-k{params.top_k}"
)
@pytest.mark.parametrize("draft", ["close", "unrelated"])
def test_a_chain_gives_the_targets_own_seeded_decoding(
    image: LegacyImage, checkpoint: Path, ties: NearTies, params: SamplingParams, draft: str
) -> None:
    target = whole(checkpoint)
    plain = engine_of(EagerModel(target, rows=1, capacity=LENGTH + CHAIN, max_nodes=16))
    legacy = engine_of(load(checkpoint))
    guesser = tiny_decoder(99, VOCABULARY) if draft == "unrelated" else nudged(target, 0.05)
    for length, tokens in ((1, 40), (70, 25)):  # the second runs into the end of the sequence
        prompt = prompt_of(length)
        reference = alone(LocalSession(plain), prompt, params, tokens)
        assert_same_text(
            target,
            prompt,
            params,
            reference,
            lambda text, n: alone(LocalSession(legacy), text, params, n),
            ties,
        )
        chains = lambda text, n: speculated(  # noqa: E731
            LocalSession(legacy), rounds(guesser, Chain(CHAIN - 1)), text, params, n
        )
        assert_same_text(target, prompt, params, reference, chains, ties)


def test_some_of_the_drafts_guesses_are_accepted_and_some_are_not(
    image: LegacyImage, checkpoint: Path
) -> None:
    steps: list[Step] = []
    speculated(
        LocalSession(engine_of(load(checkpoint))),
        rounds(nudged(whole(checkpoint), 0.05), Chain(4)),
        prompt_of(9),
        SamplingParams(1.0, seed=3),
        60,
        steps.append,
    )
    accepted = [len(step.tokens) - 1 for step in steps if step.tokens]
    assert sum(accepted) == sum(who != NOBODY for step in steps for who in step.proposers)
    assert min(accepted) < 4
    assert max(accepted) > 0


def test_a_row_that_is_used_again_remembers_nothing_but_the_shared_prefix(
    image: LegacyImage, checkpoint: Path
) -> None:
    legacy = engine_of(load(checkpoint))
    texts = [prompt_of(40), prompt_of(40)[:20] + prompt_of(30), prompt_of(12)]
    fresh = [
        alone(LocalSession(engine_of(load(checkpoint))), text, SamplingParams(1.0, seed=5), 20)
        for text in texts
    ]
    assert [
        alone(LocalSession(legacy), text, SamplingParams(1.0, seed=5), 20) for text in texts
    ] == fresh


def test_a_node_alone_runs_in_the_program_of_a_whole_chain(
    image: LegacyImage, checkpoint: Path
) -> None:
    """So what is chosen does not depend on how much was drafted, whatever a program's rounding."""
    legacy = load(checkpoint)
    (model,) = image.models
    assert [length for _, length in model.calls] == [CHAIN, 128]  # both warmed up
    sequence = ModelSequence(legacy, 0, SamplingParams())
    sequence.extend(prompt_of(50))
    for tokens in ([7], [7, 8, 9], list(range(CHAIN))):
        sequence.choose(TokenTree.chain(tokens))
    assert model.calls[2:] == [(0, 128), *[(50, CHAIN)] * 3]


def test_a_sequence_may_be_filled_to_its_last_token(image: LegacyImage, checkpoint: Path) -> None:
    """The padding of the longest call still finds slots behind it."""
    legacy = load(checkpoint)
    made = alone(LocalSession(engine_of(legacy)), prompt_of(LENGTH - 2), SamplingParams(), 2)
    assert len(made) == 2
    last = ModelSequence(legacy, 0, SamplingParams())
    last.extend(prompt_of(legacy.capacity - 7))
    assert len(last.choose(TokenTree.chain(range(7)))) == 7


def test_a_branching_tree_is_refused_with_what_to_do(image: LegacyImage, checkpoint: Path) -> None:
    legacy = engine_of(load(checkpoint))
    with pytest.raises(InvalidRequest, match=r"chains only .* --gamma 4"):
        speculated(
            LocalSession(legacy),
            rounds(tiny_decoder(99, VOCABULARY), BestFirst(5, 2)),
            prompt_of(9),
            SamplingParams(),
            30,
        )
    assert len(alone(LocalSession(legacy), prompt_of(9), SamplingParams(), 5)) == 5


def test_nodes_that_do_not_continue_the_cache_are_refused(
    image: LegacyImage, checkpoint: Path
) -> None:
    legacy = load(checkpoint)
    sequence = ModelSequence(legacy, 0, SamplingParams())
    sequence.extend(prompt_of(5))
    segment = sequence.prepare(TokenTree.chain([3, 4]))
    moved: list[dict[str, Any]] = [
        {"slots": segment.slots + 1},
        {"positions": segment.positions + 1},
        {"context": np.array([[True, True, False, True, True]])},
        {"context": np.repeat(segment.context, 2, axis=0)},
    ]
    for change in moved:
        with pytest.raises(InvalidRequest, match="continue the cache"):
            legacy.choose([segment._replace(**change)])
    assert len(legacy.choose([segment])[0]) == 2


def test_more_nodes_than_the_longest_call_are_refused(image: LegacyImage, checkpoint: Path) -> None:
    legacy = load(checkpoint, sequence_length=128)
    n = legacy.max_nodes + 1
    chain, ids = TokenTree.chain(np.zeros(n, dtype=np.int32)), np.arange(n, dtype=np.int32)
    segment = ModelSequence(legacy, 0, SamplingParams()).prepare(TokenTree.chain([3]))
    with pytest.raises(LimitExceeded, match=r"129 nodes.*128"):
        legacy.choose(
            [segment._replace(tokens=chain.tokens, slots=ids, positions=ids, tree_mask=chain.mask)]
        )


def test_a_target_does_not_draft(image: LegacyImage, checkpoint: Path) -> None:
    sequence = ModelSequence(load(checkpoint), 0, SamplingParams())
    with pytest.raises(InvalidRequest, match="cannot draft"):
        sequence.rank(TokenTree.chain([3]), [0], 2)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"transformers-neuronx": "0.12.313"}, "found here: transformers-neuronx 0.12.313"),
        ({"transformers-neuronx": "0.1"}, "found here: transformers-neuronx 0.1"),
        ({"torch-neuronx": "2.9.0.2.15.32035"}, "found here: torch-neuronx 2.9.0.2.15.32035"),
        ({"torch-neuronx": "2.8.0.2.11.1"}, "found here: torch-neuronx 2.8.0.2.11.1"),
        ({"torch-neuronx": "1.0"}, "found here: torch-neuronx 1.0"),
        ({"transformers": "5.23.0"}, "found here: transformers 5.23.0"),
    ],
)
def test_other_packages_are_refused_by_what_was_found_and_what_is_needed(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    checkpoint: Path,
    changes: dict[str, str],
    said: str,
) -> None:
    LegacyImage(versions=VERSIONS | changes).install(monkeypatch, tmp_path / "packages")
    with pytest.raises(MissingExtra) as refused:
        load(checkpoint)
    assert said in str(refused.value)
    assert "needs transformers-neuronx 0.13" in str(refused.value)
    assert "pip install --extra-index-url" in str(refused.value)


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


def test_without_the_package_the_install_line_is_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, checkpoint: Path
) -> None:
    without = {name: number for name, number in VERSIONS.items() if name != "transformers-neuronx"}
    LegacyImage(versions=without).install(monkeypatch, tmp_path / "packages")
    with pytest.raises(
        MissingExtra, match=r"transformers-neuronx is not installed here.*pip install"
    ):
        load(checkpoint)


@pytest.mark.parametrize(
    ("machine", "error", "said"),
    [
        ({"device": False}, InvalidRequest, "no Neuron device"),
        ({"instance": "trn2.3xlarge"}, InvalidRequest, "trn1 and inf2, this is a trn2 instance"),
        ({"busy": True}, Busy, "another process has reserved them"),
        ({"fails": "status 1003: Numerical Error"}, Unavailable, "NaN or an infinity"),
    ],
)
def test_a_machine_that_cannot_serve_it_says_why(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    checkpoint: Path,
    machine: dict[str, Any],
    error: type[OutriderError],
    said: str,
) -> None:
    LegacyImage(**machine).install(monkeypatch, tmp_path / "packages")
    with pytest.raises(error, match=said):
        load(checkpoint)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model_type": "qwen2"}, "model_type"),
        ({"head_dim": 8}, "head_dim"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling"),
        (
            {
                "rope_theta": None,
                "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
            },
            "rope_theta is 500000.0",
        ),
        (
            {"rms_norm_eps": 1e-5, "rope_scaling": None, "rope_parameters": LLAMA3},
            "rope_scaling.factor is 8.0",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_checkpoint_that_would_be_computed_wrongly_is_refused_by_its_field(
    image: LegacyImage, tmp_path: Path, changes: dict[str, Any], field: str
) -> None:
    directory = write_checkpoint(tmp_path / "model", **changes)
    with pytest.raises(UnsupportedModel, match=f"config.json field {field}"):
        load(directory)


@pytest.mark.parametrize(
    "changes", [{"rope_scaling": LLAMA3}, {"tie_word_embeddings": True}, {"rope_theta": 500000.0}]
)
def test_other_llamas_are_served_exactly(
    image: LegacyImage, tmp_path: Path, ties: NearTies, changes: dict[str, Any]
) -> None:
    directory = write_checkpoint(tmp_path / "model", **changes)
    target, params, prompt = whole(directory), SamplingParams(1.0, seed=4), prompt_of(30)
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
    with pytest.raises(InvalidRequest, match=f"--max_tree_nodes {chain}"):
        load(checkpoint, chain=chain)


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
