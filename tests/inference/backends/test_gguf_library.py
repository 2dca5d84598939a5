"""GGUF files in llama.cpp itself: scores are those of our decoders and of libraries' models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForCausalLM

from inference.backends.eager import EagerModel
from inference.backends.gguf.library import GgufFacts
from inference.backends.gguf.model import GgufModel, load_gguf
from inference.backends.sequence import ModelSequence, Slots
from inference.errors import Mismatch, Unavailable, UnsupportedModel
from inference.model.checkpoints.config import parse_config
from inference.model.decoder import Decoder
from inference.sampling import SamplingParams
from inference.tree.token_tree import TokenTree
from outrider.models.found_model import EMBEDDED
from tests.support.families import WINDOW, config_of
from tests.support.gguf_models import write_gguf, write_library_gguf
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


def test_behind_a_token_that_llama_cpp_refuses_the_next_call_is_right(
    files: dict[str, Path],
) -> None:
    """And no id beyond the tokenizer is ever chosen."""
    sequences = [sequence_after(load(files["F32"]), PROMPT) for _ in range(2)]
    with pytest.raises(Unavailable, match=r"invalid token\[1\] = 600"):
        sequences[0].choose(TokenTree.chain([5, 600]))
    ranked = [sequence.rank(TokenTree.chain([5]), [0], VOCABULARY) for sequence in sequences]
    assert ranked[0].ids.tolist() == ranked[1].ids.tolist()
    assert sorted(ranked[0].ids[0].tolist()) == list(range(VOCABULARY))


def test_files_that_cannot_be_served_are_refused(files: dict[str, Path], tmp_path: Path) -> None:
    whole, cut, none = files["F32"], tmp_path / "cut.gguf", tmp_path / "none.gguf"
    cut.write_bytes(whole.read_bytes()[:5000])
    assert_refused(lambda: load(cut), ["llama.cpp", "cut.gguf"], UnsupportedModel)
    assert_refused(lambda: load(none), ["none.gguf"])
    assert_refused(lambda: load(whole, 521), ["520", "521"], Mismatch)
    assert_refused(lambda: load(whole, 9, gpu=0), ["GPU"])


TEXT, OTHER = np.random.default_rng(3).integers(2, VOCABULARY, (2, 60)).tolist()
TREE = TokenTree(*np.array([[5, 6, 7, 8, 9], [-1, 0, 0, 1, 3]], dtype=np.int32))


class Made(NamedTuple):
    """A tiny random model of the library, and its file."""

    library: Any
    file: Path


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    torch.manual_seed(1)
    known = {"vocab_size": VOCABULARY, "logit_scale": 1.0}
    config = AutoConfig.for_model(**config_of(request.param) | known)
    library = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    for parameter in library.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape)
    path = tmp_path_factory.mktemp("gguf") / f"{request.param}.gguf"
    write_library_gguf(path, library.requires_grad_(False), EMBEDDED / "target")
    return Made(library, path)


windows_and_states = pytest.mark.parametrize("made", ["cohere2", "lfm2"], indirect=True)


def load_family(made: Made) -> GgufModel:
    facts, sizes = GgufFacts.read(made.file), {"rows": 2, "capacity": 80, "max_nodes": 64}
    window = WINDOW if facts.architecture == "cohere2" else 0
    assert (facts.window, facts.max_positions) == (window, 256)
    return load_gguf(made.file, facts, vocabulary=VOCABULARY, threads=1, **sizes)


def own_scores(library: Any, text: Sequence[int]) -> NDArray[np.float32]:  # [5, VOCABULARY]
    """The library's log-probabilities at TREE behind a text, of one pass for each node."""
    paths = [TREE.tokens[TREE.mask[node]].tolist() for node in range(len(TREE))]
    logits = [library(input_ids=torch.tensor([[*text, *path]])).logits[0, -1] for path in paths]
    scores: NDArray[np.float32] = torch.stack(logits).log_softmax(-1).numpy()
    return scores


def scores_at(model: GgufModel, row: int, slots: Slots) -> NDArray[np.float32]:  # [5, VOCABULARY]
    """The model's own at TREE, behind what the row's slots hold."""
    sequence = ModelSequence(model, row, SamplingParams(), slots.committed_copy())
    return by_id(sequence.rank(TREE, range(len(TREE)), VOCABULARY))


def after_the_search_for_cells(model: GgufModel) -> Slots:
    """TEXT on row 0, where row 1 went back and took many cells, which llama.cpp looked for among
    those of row 0."""
    other = sequence_after(model, OTHER[:20], 1)
    slots = sequence_after(model, TEXT, 0).slots
    other.slots.trim(10)
    again = ModelSequence(model, 1, SamplingParams(), other.slots.committed_copy())
    again.extend(OTHER[10:])
    return slots


@windows_and_states
def test_texts_that_are_cut_and_copied_have_the_librarys_scores(made: Made) -> None:
    model = load_family(made)
    slots = after_the_search_for_cells(model)
    for cut in (60, 40, 13, 2):
        slots.trim(cut)
        model.copy_row(0, 1, slots.high_water)
        expected = own_scores(made.library, TEXT[:cut])
        for row in (0, 1):
            assert np.abs(scores_at(model, row, slots) - expected).max() < 1e-3


@windows_and_states
def test_a_text_of_accepted_nodes_has_the_librarys_scores(made: Made) -> None:
    """Of chains and trees, all, some or none of whose nodes are accepted."""
    model, text = load_family(made), TEXT[:20]
    sequence = sequence_after(model, text)
    for path in ([1, 3, 4], [], [2], [1, 3]):
        sequence.choose(TREE)
        sequence.commit(TREE, path)
        text = [*text, *TREE.tokens[[0, *path]].tolist()]
        sequence.choose(TokenTree.chain(TEXT[20:26]))
        sequence.commit(TokenTree.chain(TEXT[20:26]), list(range(1, 1 + len(path))))
        text += TEXT[20 : 21 + len(path)]
    expected = own_scores(made.library, text)
    assert np.abs(scores_at(model, 0, sequence.slots) - expected).max() < 1e-3
