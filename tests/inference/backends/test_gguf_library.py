"""GGUF files in llama.cpp itself: the same weights in our decoder make the same scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from inference.backends.eager import EagerModel
from inference.backends.gguf_library import GgufFacts
from inference.backends.gguf_model import GgufModel, load_gguf
from inference.backends.sequence import ModelSequence
from inference.drafters.draft import Draft
from inference.drafters.round_proposer import RoundProposer
from inference.engine.engine import Engine
from inference.engine.local_session import LocalSession
from inference.errors import InvalidRequest, Mismatch, Unavailable, UnsupportedModel
from inference.model.config import parse_config
from inference.model.decoder import Decoder
from inference.planner.prices import Prices
from inference.proposer import Proposer
from inference.sampling import SamplingParams
from inference.tree import TokenTree
from outrider.models.loading import EMBEDDED
from tests.support.drafts import BUSHY, alone, knowledge, speculated
from tests.support.equality import NearTies, assert_same_text
from tests.support.gguf_files import write_gguf
from tests.support.models import TINY, random_decoder

pytest.importorskip("llama_cpp", reason="a GGUF file needs pip install 'outrider[gguf]'")
pytest.importorskip("gguf", reason="a GGUF file is written with pip install 'outrider[gguf]'")
pytestmark = pytest.mark.extended

VOCABULARY, PADDED = 512, 520
LENGTH, TREE, ROOM = 160, 16, 128
SIZES = {"vocab_size": PADDED, "hidden_size": 64, "intermediate_size": 96}
SAMPLINGS = [SamplingParams(), SamplingParams(0.7, seed=11), SamplingParams(1.0, seed=2**62 + 5)]
PROMPT: list[int] = np.random.default_rng(3).integers(2, VOCABULARY, 24).tolist()


def decoder_of(seed: int) -> Decoder:
    config = parse_config(TINY | SIZES)
    return random_decoder(config, positions=256, vocabulary=VOCABULARY, seed=seed)


@pytest.fixture(scope="module")
def target() -> Decoder:
    return decoder_of(1)


@pytest.fixture(scope="module")
def files(target: Decoder, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("gguf")
    made = {
        kind: write_gguf(folder / f"{kind}.gguf", target, EMBEDDED / "target", kind)
        for kind in ("F32", "F16", "Q8_0", "Q4_0")
    }
    other = write_gguf(folder / "other.gguf", decoder_of(2), EMBEDDED / "target", "Q4_0")
    return {**made, "other": other}


def load(path: Path, rows: int = 1, capacity: int = LENGTH + TREE) -> GgufModel:
    return load_gguf(
        path,
        GgufFacts.read(path),
        rows=rows,
        capacity=capacity,
        max_nodes=32,
        vocabulary=VOCABULARY,
        threads=1,
    )


def scores_of(model: GgufModel | EagerModel) -> np.ndarray:  # [16, VOCABULARY]
    """Log-probabilities at the nodes of a tree that grows in two calls below a prompt, and of the
    tree of the next round.
    """
    sequence = ModelSequence(model, 0, SamplingParams())
    sequence.extend(PROMPT)
    tree = TokenTree(
        np.array([5, 6, 7, 8, 9, 10, 11, 12], dtype=np.int32),
        np.array([-1, 0, 0, 1, 1, 2, 3, 5], dtype=np.int32),
    )
    ranked = [sequence.rank(tree, [0], VOCABULARY), sequence.rank(tree, [1, 2], VOCABULARY)]
    ranked.append(sequence.rank(tree, [3, 4, 5], VOCABULARY))
    ranked.append(sequence.rank(tree, [6, 7], VOCABULARY))
    sequence.commit(tree, [2, 5])
    ranked.append(sequence.rank(tree, list(range(8)), VOCABULARY))
    ids = np.concatenate([part.ids for part in ranked])
    scores = np.concatenate([part.scores for part in ranked])
    placed = np.empty_like(scores)
    np.put_along_axis(placed, ids.astype(np.int64), scores, axis=1)
    return placed


def test_a_tree_has_the_scores_that_our_decoder_gives_the_same_weights(
    target: Decoder, files: dict[str, Path]
) -> None:
    ours = scores_of(EagerModel(target, rows=1, capacity=LENGTH + TREE, max_nodes=32))
    for kind, allowed in (("F32", 1e-3), ("F16", 0.2)):
        difference = np.abs(scores_of(load(files[kind])) - ours).max()
        print(f"{kind}: log-probabilities differ by {difference:.2g} at most")
        assert difference < allowed


@pytest.fixture(scope="module")
def ties() -> NearTies:
    return NearTies()


@pytest.mark.parametrize("params", SAMPLINGS, ids=lambda params: f"T{params.temperature}")
@pytest.mark.parametrize("draft", ["F32", "Q8_0", "Q4_0", "other"])
@pytest.mark.parametrize("pace", ["growing", "rounds"])
def test_output_equals_the_targets_own_seeded_decoding(
    target: Decoder,
    files: dict[str, Path],
    ties: NearTies,
    draft: str,
    pace: str,
    params: SamplingParams,
) -> None:
    engine = Engine(
        load(files["F32"], rows=2),
        sequence_length=LENGTH,
        max_tree_nodes=TREE,
        vocabulary=VOCABULARY,
    )
    drafting = load(files[draft], capacity=LENGTH + ROOM)
    own = alone(LocalSession(engine), PROMPT, params, 32)

    def produce(prompt: Sequence[int], count: int) -> list[int]:
        proposer: Proposer = (
            Draft(drafting).proposer(0, knowledge(), Prices(), room=ROOM)
            if pace == "growing"
            else RoundProposer(drafting, BUSHY, room=16)
        )
        return speculated(LocalSession(engine), proposer, prompt, params, count)

    assert_same_text(target, PROMPT, params, own, produce, ties)
    ties.check()


def test_a_gguf_draft_serves_a_target_of_our_own_decoder(
    target: Decoder, files: dict[str, Path], ties: NearTies
) -> None:
    model = EagerModel(target, rows=1, capacity=LENGTH + TREE, max_nodes=TREE)
    engine = Engine(model, sequence_length=LENGTH, max_tree_nodes=TREE, vocabulary=VOCABULARY)
    for params in SAMPLINGS:
        own = alone(LocalSession(engine), PROMPT, params, 32)

        def produce(
            prompt: Sequence[int], count: int, params: SamplingParams = params
        ) -> list[int]:
            proposer = RoundProposer(load(files["Q8_0"], capacity=LENGTH + ROOM), BUSHY, room=16)
            return speculated(LocalSession(engine), proposer, prompt, params, count)

        assert_same_text(target, PROMPT, params, own, produce, ties)


def test_what_a_file_says_of_itself(files: dict[str, Path]) -> None:
    facts = GgufFacts.read(files["Q8_0"])
    assert facts.architecture == "llama"
    assert facts.max_positions == TINY["max_position_embeddings"]
    assert facts.stop_ids == {1}
    assert len(facts.tokens) == PADDED
    assert not facts.float32
    assert GgufFacts.read(files["F32"]).float32


def test_ids_beyond_the_tokenizer_are_never_chosen(files: dict[str, Path]) -> None:
    model = load(files["F32"])
    sequence = ModelSequence(model, 0, SamplingParams())
    sequence.extend(PROMPT)
    ranked = sequence.rank(TokenTree.chain([5]), [0], VOCABULARY)
    assert sorted(ranked.ids[0].tolist()) == list(range(VOCABULARY))


def test_a_token_that_llama_cpp_refuses_is_an_error_and_the_next_call_is_right(
    files: dict[str, Path],
) -> None:
    model, other = load(files["F32"]), load(files["F32"])
    sequences = [ModelSequence(one, 0, SamplingParams()) for one in (model, other)]
    for sequence in sequences:
        sequence.extend(PROMPT)
    with pytest.raises(Unavailable, match=r"invalid token\[1\] = 600"):
        sequences[0].choose(TokenTree.chain([5, 600]))
    tree = TokenTree.chain([5, 6, 7])
    assert sequences[0].choose(tree).tolist() == sequences[1].choose(tree).tolist()


def test_files_that_cannot_be_served_are_refused(files: dict[str, Path], tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(files["F32"].read_bytes()[:5000])
    with pytest.raises(UnsupportedModel, match=r"llama.cpp cannot load .*cut.gguf"):
        GgufFacts.read(cut)
    with pytest.raises(InvalidRequest, match="no such file"):
        GgufFacts.read(tmp_path / "none.gguf")
    facts = GgufFacts.read(files["F32"])
    with pytest.raises(Mismatch, match="has 520 ids, the tokenizer 521"):
        load_gguf(files["F32"], facts, rows=1, capacity=32, max_nodes=8, vocabulary=521, threads=1)
    with pytest.raises(InvalidRequest, match="built without a GPU"):
        load_gguf(
            files["F32"], facts, rows=1, capacity=32, max_nodes=8, vocabulary=9, threads=1, gpu=0
        )
