"""Windows and running states in llama.cpp: behind cuts and copies, scores are the library's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForCausalLM

from inference.backends.gguf.library import GgufFacts
from inference.backends.gguf.model import GgufModel, load_gguf
from inference.backends.sequence import ModelSequence, Slots
from inference.sampling import SamplingParams
from inference.tree.token_tree import TokenTree
from outrider.models.directories import EMBEDDED
from tests.support.families import WINDOW, config_of
from tests.support.gguf_models import write_library_gguf
from tests.support.models import by_id, sequence_after

pytest.importorskip("llama_cpp", reason="a GGUF file needs pip install '.[gguf]'")
pytest.importorskip("gguf", reason="a GGUF file is written with pip install '.[gguf]'")
pytestmark = pytest.mark.extended

VOCABULARY, CAPACITY = 512, 80
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


windows = pytest.mark.parametrize("made", ["cohere2"], indirect=True)
windows_and_states = pytest.mark.parametrize("made", ["cohere2", "lfm2"], indirect=True)


def load(file: Path, facts: GgufFacts) -> GgufModel:
    sizes = {"rows": 2, "capacity": CAPACITY, "max_nodes": 64, "threads": 1}
    return load_gguf(file, facts, vocabulary=VOCABULARY, **sizes)


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
    model = load(made.file, GgufFacts.read(made.file))
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
    model, text = load(made.file, GgufFacts.read(made.file)), TEXT[:20]
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


@windows
def test_a_window_does_not_limit_a_text(made: Made) -> None:
    facts = GgufFacts.read(made.file)
    assert (facts.window, facts.max_positions) == (WINDOW, 256)


@windows
def test_without_shadows_llama_cpp_gives_keys_away_that_a_cut_shows_again(made: Made) -> None:
    """The reason for GgufContext's shadows: where this fails, they may not be needed any more."""
    model = load(made.file, GgufFacts.read(made.file)._replace(window=0))
    slots = after_the_search_for_cells(model)
    slots.trim(40)
    expected = own_scores(made.library, TEXT[:40])
    assert np.abs(scores_at(model, 0, slots) - expected).max() > 0.1
