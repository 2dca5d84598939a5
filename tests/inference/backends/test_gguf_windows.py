"""Sliding windows in llama.cpp: behind cuts and copies, scores are those of the library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForCausalLM

from inference.backends.gguf_library import GgufFacts
from inference.backends.gguf_loading import load_gguf
from inference.backends.gguf_model import GgufModel
from inference.backends.sequence import ModelSequence
from inference.backends.slots import Slots
from inference.sampling import SamplingParams
from inference.tree import TokenTree
from outrider.models.directories import EMBEDDED
from tests.support.families import WINDOW, config_of
from tests.support.gguf_files import write_windowed_gguf
from tests.support.models import sequence_after

pytest.importorskip("llama_cpp", reason="a GGUF file needs pip install 'outrider[gguf]'")
pytest.importorskip("gguf", reason="a GGUF file is written with pip install 'outrider[gguf]'")
pytestmark = pytest.mark.extended

VOCABULARY, CAPACITY = 512, 80
TEXT, OTHER = np.random.default_rng(3).integers(2, VOCABULARY, (2, 60)).tolist()
TREE = TokenTree(*np.array([[5, 6, 7, 8, 9], [-1, 0, 0, 1, 3]], dtype=np.int32))


@pytest.fixture(scope="module")
def library() -> Any:
    torch.manual_seed(1)
    fields = config_of("cohere2") | {"vocab_size": VOCABULARY, "logit_scale": 1.0}
    config = AutoConfig.for_model(**fields)
    made = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    for parameter in made.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape)
    return made.requires_grad_(False)


@pytest.fixture(scope="module")
def file(library: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "windowed.gguf"
    return write_windowed_gguf(path, library, EMBEDDED / "target")


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
    ranked = sequence.rank(TREE, range(len(TREE)), VOCABULARY)
    scores: NDArray[np.float32] = np.take_along_axis(ranked.scores, ranked.ids.argsort(), 1)
    return scores


def after_the_search_for_cells(model: GgufModel) -> Slots:
    """TEXT on row 0, where row 1 went back and took many cells, which llama.cpp looked for among
    those of row 0."""
    other = sequence_after(model, OTHER[:20], 1)
    slots = sequence_after(model, TEXT, 0).slots
    other.slots.trim(10)
    again = ModelSequence(model, 1, SamplingParams(), other.slots.committed_copy())
    again.extend(OTHER[10:])
    return slots


def test_texts_beyond_the_window_that_are_cut_and_copied_have_the_librarys_scores(
    library: Any, file: Path
) -> None:
    facts = GgufFacts.read(file)
    assert (facts.window, facts.max_positions) == (WINDOW, 256)
    model = load(file, facts)
    slots = after_the_search_for_cells(model)
    for cut in (60, 40, 13, 2):
        slots.trim(cut)
        model.copy_row(0, 1, slots.high_water)
        expected = own_scores(library, TEXT[:cut])
        for row in (0, 1):
            assert np.abs(scores_at(model, row, slots) - expected).max() < 1e-3


def test_without_shadows_llama_cpp_gives_keys_away_that_a_cut_shows_again(
    library: Any, file: Path
) -> None:
    """The reason for GgufContext's shadows: where this fails, they may not be needed any more."""
    model = load(file, GgufFacts.read(file)._replace(window=0))
    slots = after_the_search_for_cells(model)
    slots.trim(40)
    assert np.abs(scores_at(model, 0, slots) - own_scores(library, TEXT[:40])).max() > 0.1
