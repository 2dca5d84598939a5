"""GGUF files in llama.cpp itself: the same weights in our decoder make the same scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from inference.backends.eager import EagerModel
from inference.backends.gguf.library import GgufFacts
from inference.backends.gguf.model import GgufModel, load_gguf
from inference.errors import Mismatch, Unavailable, UnsupportedModel
from inference.model.checkpoints.config import parse_config
from inference.model.decoder import Decoder
from inference.tree.token_tree import TokenTree
from outrider.models.directories import EMBEDDED
from tests.support.gguf_models import write_gguf
from tests.support.models import TINY, by_id, random_decoder, sequence_after
from tests.support.refusals import assert_refused

pytest.importorskip("llama_cpp", reason="a GGUF file needs pip install '.[gguf]'")
pytest.importorskip("gguf", reason="a GGUF file is written with pip install '.[gguf]'")
pytestmark = pytest.mark.extended

VOCABULARY, PADDED = 512, 520
CAPACITY = 176
PROMPT: list[int] = np.random.default_rng(3).integers(2, VOCABULARY, 24).tolist()


@pytest.fixture(scope="module")
def target() -> Decoder:
    sizes = {"vocab_size": PADDED, "hidden_size": 64, "intermediate_size": 96}
    return random_decoder(parse_config(TINY | sizes), positions=256, vocabulary=VOCABULARY, seed=1)


@pytest.fixture(scope="module")
def files(target: Decoder, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, like = tmp_path_factory.mktemp("gguf"), EMBEDDED / "target"
    kinds = ("F32", "F16", "Q8_0")
    return {kind: write_gguf(folder / f"{kind}.gguf", target, like, kind) for kind in kinds}


def load(path: Path, vocabulary: int = VOCABULARY, gpu: int | None = None) -> GgufModel:
    sizes = {"rows": 1, "capacity": CAPACITY, "max_nodes": 32, "threads": 1}
    return load_gguf(path, GgufFacts.read(path), vocabulary=vocabulary, gpu=gpu, **sizes)


def scores_of(model: GgufModel | EagerModel) -> np.ndarray:  # [16, VOCABULARY]
    """Log-probabilities at the nodes of a tree that grows, and of the tree of the next round."""
    sequence = sequence_after(model, PROMPT)
    tree = TokenTree(
        np.array([5, 6, 7, 8, 9, 10, 11, 12], dtype=np.int32),
        np.array([-1, 0, 0, 1, 1, 2, 3, 5], dtype=np.int32),
    )
    ranked = [sequence.rank(tree, [0], VOCABULARY), sequence.rank(tree, [1, 2], VOCABULARY)]
    ranked.append(sequence.rank(tree, [3, 4, 5], VOCABULARY))
    ranked.append(sequence.rank(tree, [6, 7], VOCABULARY))
    sequence.commit(tree, [2, 5])
    ranked.append(sequence.rank(tree, list(range(8)), VOCABULARY))
    return np.concatenate([by_id(part) for part in ranked])


def test_a_tree_has_the_scores_of_our_decoder(target: Decoder, files: dict[str, Path]) -> None:
    ours = scores_of(EagerModel(target, rows=1, capacity=CAPACITY, max_nodes=32))
    for kind, allowed in (("F32", 1e-3), ("F16", 0.2)):
        difference = np.abs(scores_of(load(files[kind])) - ours).max()
        print(f"{kind}: log-probabilities differ by {difference:.2g} at most")
        assert difference < allowed


def test_what_a_file_says_of_itself(files: dict[str, Path]) -> None:
    facts = GgufFacts.read(files["Q8_0"])
    assert facts.architecture == "llama"
    assert facts.max_positions == TINY["max_position_embeddings"]
    assert facts.stop_ids == {1}
    assert len(facts.tokens) == PADDED
    assert not facts.float32
    assert GgufFacts.read(files["F32"]).float32


def test_ids_beyond_the_tokenizer_are_never_chosen(files: dict[str, Path]) -> None:
    sequence = sequence_after(load(files["F32"]), PROMPT)
    ranked = sequence.rank(TokenTree.chain([5]), [0], VOCABULARY)
    assert sorted(ranked.ids[0].tolist()) == list(range(VOCABULARY))


def test_behind_a_token_that_llama_cpp_refuses_the_next_call_is_right(
    files: dict[str, Path],
) -> None:
    model, other = load(files["F32"]), load(files["F32"])
    sequences = [sequence_after(one, PROMPT) for one in (model, other)]
    with pytest.raises(Unavailable, match=r"invalid token\[1\] = 600"):
        sequences[0].choose(TokenTree.chain([5, 600]))
    tree = TokenTree.chain([5, 6, 7])
    assert sequences[0].choose(tree).tolist() == sequences[1].choose(tree).tolist()


def test_files_that_cannot_be_served_are_refused(files: dict[str, Path], tmp_path: Path) -> None:
    whole, cut, none = files["F32"], tmp_path / "cut.gguf", tmp_path / "none.gguf"
    cut.write_bytes(whole.read_bytes()[:5000])
    assert_refused(lambda: load(cut), ["llama.cpp", "cut.gguf"], UnsupportedModel)
    assert_refused(lambda: load(none), ["none.gguf"])
    assert_refused(lambda: load(whole, 521), ["520", "521"], Mismatch)
    assert_refused(lambda: load(whole, 9, gpu=0), ["GPU"])
