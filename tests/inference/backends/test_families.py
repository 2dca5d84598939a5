"""Families of causal models by the transformers library: every text is the library's own."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, __version__

from inference.backends.cuda.model import Recorder
from inference.backends.eager import choose_at
from inference.backends.libraries.transformers_loading import (
    CudaLibraryModel,
    in_fours,
    load_transformers,
)
from inference.backends.libraries.transformers_model import TransformersModel
from inference.backends.sequence import ModelSequence, Slots
from inference.drafters.growing_proposer import Draft
from inference.drafters.round_proposer import BestFirst
from inference.engine.engine import Engine
from inference.engine.sessions.local_session import LocalSession
from inference.errors import UnsupportedModel
from inference.model.checkpoints.library_config import read_library_config
from inference.planner.prices import Prices
from inference.planner.profiling import survey_target
from inference.proposer import Proposer
from inference.sampling import SamplingParams
from inference.times import Times
from inference.tree.token_tree import TokenTree
from tests.support.equality import assert_rows_are_independent
from tests.support.fake_cuda import Traced
from tests.support.families import EVERY_TIME, FAMILIES, STATES, VOCABULARY, config_of, table_rows
from tests.support.models import SAMPLINGS, by_id, segment, sequence_after, tiny_decoder
from tests.support.pairs import alone, knowledge, rounds, speculated
from tests.support.refusals import assert_refused
from tests.support.repository import ROOT

OLD = __version__ < "5"
LENGTH, TREE, MADE = 64, 16, 12
PROMPT: list[int] = np.random.default_rng(3).integers(0, VOCABULARY, 20).tolist()


def each_of(families: Iterable[str]) -> pytest.MarkDecorator:
    often = {one: () if one in EVERY_TIME else (pytest.mark.extended,) for one in families}
    return pytest.mark.parametrize(
        "family", [pytest.param(one, marks=marks) for one, marks in often.items()]
    )


WITH_STATES = [one for one in FAMILIES if FAMILIES[one].has.endswith(STATES)]
each_dense_family = each_of(
    one for one in FAMILIES if "experts" not in FAMILIES[one].has and one not in WITH_STATES
)


@cache
def original(family: str) -> Any:
    """The family's tiny model, with weights so large that its choices are far apart."""
    if OLD and ("experts" in FAMILIES[family].has or family not in CONFIG_MAPPING):
        pytest.skip("needs transformers 5")
    torch.manual_seed(sorted(FAMILIES).index(family))
    config = AutoConfig.for_model(**config_of(family))
    library = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    for parameter in library.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape)
    return library.requires_grad_(False)


def saved(family: str, directory: Path) -> Path:
    original(family).save_pretrained(directory)
    return directory


def loaded(directory: Path) -> TransformersModel:
    return load_transformers(
        directory,
        read_library_config(directory),
        rows=2,
        capacity=LENGTH + TREE,
        max_nodes=TREE,
        vocabulary=VOCABULARY,
        dtype=None,
        device=torch.device("cpu"),
    )


@torch.no_grad()
def own_text(library: nn.Module, params: SamplingParams) -> list[int]:
    """The choices of the sampling contract from full passes of the library."""
    tokens = list(PROMPT)
    for _ in range(MADE):
        logits = library(input_ids=torch.tensor([tokens]), use_cache=False).logits[:, -1:].float()
        at = torch.tensor([[len(tokens)]], dtype=torch.int32)
        (chosen,) = choose_at(logits, at, [segment(0, 1, params)])
        tokens += chosen.tokens.tolist()
    return tokens[len(PROMPT) :]


def generated(library: Any) -> list[int]:
    made = library.generate(torch.tensor([PROMPT]), max_new_tokens=MADE, do_sample=False)
    tokens: list[int] = made[0, len(PROMPT) :].tolist()
    return tokens


def drafts_of(model: TransformersModel) -> list[Proposer]:
    """A draft of the same family whose weights are near, and one that is never right."""
    near, noise = copy.deepcopy(model.library), torch.Generator().manual_seed(1)
    for parameter in near.parameters():
        parameter.data += 0.02 * torch.randn(parameter.shape, generator=noise)
    sizes = {"rows": 1, "capacity": LENGTH + 512, "max_nodes": 128, "vocabulary": VOCABULARY}
    draft = TransformersModel(near, model.reaches, **sizes)
    unrelated = tiny_decoder(99, VOCABULARY, vocab_size=VOCABULARY)
    return [
        Draft(draft).proposer(0, knowledge(), Prices()),
        rounds(unrelated, BestFirst(TREE - 1, 4)),
    ]


@each_of(FAMILIES)
def test_every_text_is_the_librarys_own(family: str, tmp_path: Path) -> None:
    model = loaded(saved(family, tmp_path))
    engine = Engine(model, sequence_length=LENGTH, max_tree_nodes=TREE, vocabulary=VOCABULARY)
    drafts, steps = drafts_of(model), list[int]()
    assert own_text(original(family), SamplingParams()) == generated(original(family))
    for params in SAMPLINGS[:3]:
        expected = own_text(original(family), params)
        assert alone(LocalSession(engine), PROMPT, params, MADE) == expected
        for draft in drafts:
            session = LocalSession(engine)
            text = speculated(
                session, draft, PROMPT, params, MADE, lambda step: steps.append(len(step.tokens))
            )
            assert text == expected
    assert max(steps) > 1  # candidates were accepted


REFUSED = {
    "a running state": ({"model_type": "mamba"}, ["mamba", "running state"]),
    "a running state beside windows": (
        {**config_of("gemma2"), "layer_types": ["sliding_attention", *["linear_attention"] * 2]},
        ["layer_types", "sliding_attention", "full_attention"],
    ),
    "code of its own": (
        {"model_type": "unheard_of", "auto_map": {"AutoModelForCausalLM": "modeling.Model"}},
        ["unheard_of", "code"],
    ),
    "quantized": (
        {**config_of("llama"), "quantization_config": {"quant_method": "mxfp4"}},
        ["quantization_config", "mxfp4", "bfloat16"],
    ),
    "no text model": ({"model_type": "vit"}, ["causal"]),
    "a wrong field": ({**config_of("llama"), "hidden_size": "wide"}, ["hidden_size"]),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_would_be_computed_wrongly_is_refused_by_its_config(what: str, tmp_path: Path) -> None:
    if OLD and what == "a wrong field":
        pytest.skip("needs transformers 5")
    fields, shown = REFUSED[what]
    (tmp_path / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    assert_refused(lambda: read_library_config(tmp_path), shown, UnsupportedModel)


def test_weights_that_do_not_fit_and_other_files_than_safetensors_are_refused(
    tmp_path: Path,
) -> None:
    directory = saved("llama", tmp_path)
    fields = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    for change, shown in (({"num_hidden_layers": 4}, "missing"), ({"vocab_size": 90}, "90")):
        text = json.dumps(fields | change)
        (directory / "config.json").write_text(text, encoding="utf-8")
        assert_refused(lambda: loaded(directory), [shown], UnsupportedModel)
    torch.save({}, directory / "pytorch_model.bin")
    (directory / "model.safetensors").unlink()
    assert_refused(lambda: loaded(directory), ["safetensors"], UnsupportedModel)


def test_a_model_that_does_not_follow_masks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bloom takes positions from how many keys a mask shows."""
    config = AutoConfig.for_model("bloom", vocab_size=97, hidden_size=32, n_layer=2, n_head=4)
    library = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    library.save_pretrained(tmp_path)
    text = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(
        json.dumps(text | {"max_position_embeddings": 256}), encoding="utf-8"
    )
    assert_refused(lambda: loaded(tmp_path), ["bloom", "cannot compute"], UnsupportedModel)


def recorded_as_loaded(family: str, directory: Path, recorder: Recorder) -> None:
    """Its calls are run, recorded and replayed, and choose what the loaded model chooses."""
    found = loaded(saved(family, directory))
    sizes = {"rows": 2, "capacity": found.capacity, "max_nodes": TREE, "vocabulary": VOCABULARY}
    model = CudaLibraryModel(found.library, found.reaches, recorder=recorder, **sizes)
    for rows in (1, 2):
        for first in range(0, 24, 8):
            call = [segment(row, 8, first=first, context=first) for row in range(rows)]
            for made, expected in zip(model.choose(call), found.choose(call), strict=True):
                assert made.tokens.tolist() == expected.tokens.tolist()


@each_dense_family
def test_a_dense_familys_calls_can_be_recorded(family: str, tmp_path: Path) -> None:
    """No shape, and no branch of the library's code, depends on what a tensor holds."""
    recorder = Traced()
    recorded_as_loaded(family, tmp_path, recorder)
    assert recorder.replayed == 4


def test_what_cannot_be_recorded_is_run_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = Traced()
    recorded_as_loaded("gpt_oss", tmp_path, recorder)
    assert (recorder.eager, recorder.recorded) == (6, 0)
    assert capsys.readouterr().err.count("without a CUDA graph") == 2  # one line for each shape


def scores_behind(model: TransformersModel, row: int, slots: Slots) -> NDArray[np.float32]:
    """Log-probabilities of all tokens at a tree behind what the slots hold."""
    tree = TokenTree(*np.array([[5, 6, 7, 8], [-1, 0, 0, 2]], dtype=np.int32))
    sequence = ModelSequence(model, row, SamplingParams(), slots)
    return by_id(sequence.rank(tree, range(4), VOCABULARY))


@each_of(WITH_STATES)
def test_a_state_is_computed_again_where_none_is_kept(family: str, tmp_path: Path) -> None:
    """Behind a text that is cut, or copied to another row. The model is timed before it holds a
    text, and no bit of a state depends on other rows and branches.
    """
    held, fresh = (loaded(saved(family, tmp_path)) for _ in range(2))
    assert (2, 4) in survey_target(held, LENGTH, 2, 4, Times()).run(lambda line: None)
    text = np.random.default_rng(8).integers(0, VOCABULARY, 50).tolist()
    slots = sequence_after(held, text).slots
    for cut in (49, 40, 16, 3):
        slots.trim(cut)
        expected = scores_behind(fresh, 0, sequence_after(fresh, text[:cut]).slots)
        held.copy_row(0, 1, cut)
        for row in (0, 1):
            found = scores_behind(held, row, slots.committed_copy())
            assert np.abs(found - expected).max() < 1e-4
    assert_rows_are_independent(held, held.cache, TREE, VOCABULARY, SamplingParams(1.0, seed=8))


@pytest.mark.parametrize("family", ["gpt_oss", "deepseek_v3"])
def test_no_bit_of_a_token_depends_on_those_beside_it(family: str) -> None:
    """Experts included: which tokens share one differs from call to call."""
    library = copy.deepcopy(original(family))
    in_fours(library)
    ids, few = torch.arange(40).reshape(2, 20) % VOCABULARY, slice(0, 1)
    with torch.no_grad():
        both, first = library(input_ids=ids).logits, library(input_ids=ids[few]).logits
    assert both[few].equal(first)


def test_a_rope_that_changes_with_length_serves_texts_of_its_original_length(
    tmp_path: Path,
) -> None:
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    fields = config_of("phi3") | {
        "rope_parameters": {**rope, "rope_theta": 1e4, "original_max_position_embeddings": 128},
        "original_max_position_embeddings": 128,
    }
    (tmp_path / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    config = read_library_config(tmp_path)
    assert config.max_positions == 128
    assert config.limited_by.endswith(" original_max_position_embeddings")


def test_the_table_of_models_is_current() -> None:
    text = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    assert text.partition("|---|---|---|\n")[2].startswith(table_rows() + "\n")
