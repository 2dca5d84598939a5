"""The contract of draft methods. A new one joins by a line of FLAGS."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from inference.engine.engine import Engine
from inference.engine.sessions.local_session import LocalSession
from inference.model.checkpoints.checkpoint import load_decoder
from inference.model.checkpoints.config import read_config
from inference.order import Decode
from inference.planner.prices import Prices
from inference.proposer import Proposer
from inference.sampling import Grammar, GrammarKind, SamplingParams
from inference.text.grammar import Grammars
from inference.text.tokenizer import Tokenizer
from outrider.draft_methods import find_draft
from outrider.models.found_model import EMBEDDED, Capacity
from outrider.options.draft_flags import METHODS
from outrider.options.roles import DraftRole, FusedTargetRole, TargetRole
from outrider.target.colocated_draft import with_draft
from outrider.target.target import load_served
from tests.support import heads
from tests.support.gguf_models import write_gguf
from tests.support.pairs import knowledge, text_of

TOKENS, LENGTH = 16, 256
JSON = Grammar(
    GrammarKind.JSON_SCHEMA,
    """{"type": "object", "required": ["name", "kinds"],
    "additionalProperties": false, "properties": {"name": {"type": "string"},
    "kinds": {"type": "array", "items": {"enum": ["int", "str"]}}}}""",
)
SAMPLINGS = [
    SamplingParams(),
    SamplingParams(0.8, seed=3),
    SamplingParams(1.0, seed=3, grammar=JSON),
    SamplingParams(0.7, seed=3, grammar=JSON, repetition_penalty=1.2, min_p=0.125),
]
OPTIONS: dict[str, Any] = {"device": "cpu", "sequence_length": LENGTH, "threads": 1}


def a_head(folder: Path) -> dict[str, Any]:
    """A random one for the embedded target."""
    config = read_config(EMBEDDED / "target")
    raw = heads.raw_config(config, eagle_aux_hidden_state_layer_ids=[2, 4, 6])
    return {"draft_model": str(heads.write_head(folder / "head", raw, heads.tensors_of(config)))}


def a_file(folder: Path) -> dict[str, Any]:
    """The embedded draft as a GGUF file."""
    pytest.importorskip("llama_cpp", reason="a GGUF file needs pip install '.[gguf]'")
    pytest.importorskip("gguf", reason="a GGUF file is written with pip install '.[gguf]'")
    directory, here = EMBEDDED / "draft", torch.device("cpu")
    vocabulary = Tokenizer(directory).vocabulary
    decoder = load_decoder(
        directory, positions=LENGTH, vocabulary=vocabulary, dtype=torch.float32, device=here
    )
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(directory / name, folder / name)
    return {"draft_model": str(write_gguf(folder / "draft.gguf", decoder, directory, "Q8_0"))}


FLAGS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "model": lambda folder: {},
    "substitute": lambda folder: {},
    "model in a GGUF file": a_file,
    "eagle": a_head,
}


def made(
    engine: Engine, params: SamplingParams, *, beside: bool, drafts: list[Proposer]
) -> list[int]:
    prompt = Tokenizer(EMBEDDED / "target").encode("def main(argv):\n    def main(argv):\n")
    order = Decode(len(prompt) + TOKENS, beside=beside)
    return text_of(prompt, params, LocalSession(engine), order, drafts)


def grammars() -> Grammars:
    directory = EMBEDDED / "target"
    tokenizer, stop_ids = Tokenizer(directory), read_config(directory).stop_ids
    return Grammars(tokenizer.to_json(), tokenizer.vocabulary, sorted(stop_ids))


@pytest.fixture(scope="module")
def own() -> list[list[int]]:
    """What the target says alone."""
    engine = load_served(TargetRole(batch=1, **OPTIONS)).engine
    return [made(engine, params, beside=False, drafts=[]) for params in SAMPLINGS]


def test_every_method_is_here() -> None:
    assert {name.split()[0] for name in FLAGS} == METHODS.keys()


@pytest.mark.parametrize("name", [name for name in FLAGS if METHODS[name.split()[0]].local])
def test_a_draft_on_a_clients_machine_makes_the_targets_own_text(
    name: str, tmp_path: Path, own: list[list[int]]
) -> None:
    options = DraftRole(draft=name.split()[0], **OPTIONS, **FLAGS[name](tmp_path))
    found = find_draft(options).settled(options)
    assert found.tokenizer.fingerprint() == Tokenizer(EMBEDDED / "target").fingerprint()
    assert found.model.sequence_length(LENGTH) == LENGTH
    assert found.model.fingerprint() == find_draft(options).settled(options).model.fingerprint()
    draft = found.load(options, Capacity(1, LENGTH, 300, 256))._replace(grammars=grammars())
    engine = load_served(TargetRole(batch=1, **OPTIONS)).engine
    for params, text in zip(SAMPLINGS, own, strict=True):
        proposer = draft.proposer(0, knowledge(), Prices(), room=300)
        assert made(engine, params, beside=False, drafts=[proposer]) == text
        assert proposer.proposed > 0


@pytest.mark.parametrize("name", FLAGS)
def test_a_draft_beside_its_target_makes_the_targets_own_text(
    name: str, tmp_path: Path, own: list[list[int]]
) -> None:
    method, flags = name.split()[0], FLAGS[name](tmp_path)
    role = FusedTargetRole(batch=1, draft=f"{method},copy", **OPTIONS, **flags)
    served = load_served(role, partial(with_draft, role))
    assert served.description.draft_model
    for params, text in zip(SAMPLINGS, own, strict=True):
        assert made(served.engine, params, beside=True, drafts=[]) == text
