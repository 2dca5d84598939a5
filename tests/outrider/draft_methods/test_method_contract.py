"""The contract of draft methods, which a new one joins by a line of FLAGS, and what each of them
refuses.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from grpc_comm.server.server import BackgroundServer
from inference.backends.substitute_model import SharedCacheModel
from inference.engine.engine import Engine
from inference.engine.sessions.local_session import LocalSession
from inference.errors import (
    InvalidRequest,
    Mismatch,
    MissingExtra,
    OutriderError,
    UnsupportedModel,
)
from inference.model.checkpoints.checkpoint import load_decoder
from inference.model.checkpoints.config import read_config
from inference.order import Decode
from inference.planner.prices import Prices
from inference.proposer import Proposer
from inference.sampling import Grammar, GrammarKind, SamplingParams
from inference.text.grammar import Grammars
from inference.text.tokenizer import Tokenizer
from outrider.draft_methods import eagle, find_draft
from outrider.draft_methods import model as draft_model
from outrider.models.found_model import EMBEDDED, Capacity
from outrider.models.loading import find_target
from outrider.models.other_libraries import GgufFile
from outrider.options.draft_flags import METHODS
from outrider.options.groups import DeviceOptions
from outrider.options.roles import DraftRole, FusedTargetRole, TargetRole
from outrider.target.colocated_draft import with_draft
from outrider.target.target import load_served, load_target
from tests.support import heads
from tests.support.commands import Run
from tests.support.gguf_models import write_gguf
from tests.support.models import tiny_model
from tests.support.pairs import knowledge, text_of
from tests.support.refusals import assert_refused
from tests.support.scripted import ScriptedModel, useless

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
PROFILE = "llama-3.1-8b-trn1.2xlarge-measured"
OPTIONS: dict[str, Any] = {"device": "cpu", "sequence_length": LENGTH, "threads": 1}


def a_head(folder: Path, **overrides: Any) -> dict[str, Any]:
    """A random one for the embedded target."""
    config = read_config(EMBEDDED / "target")
    raw = heads.raw_config(config, eagle_aux_hidden_state_layer_ids=[2, 4, 6], **overrides)
    return {"draft_model": str(heads.write_head(folder / "head", raw, heads.tensors_of(config)))}


def a_file(folder: Path, model: str = "draft", kind: str = "Q8_0") -> dict[str, Any]:
    """The embedded draft as a GGUF file, with its tokenizer.json beside."""
    pytest.importorskip("llama_cpp", reason="a GGUF file needs pip install '.[gguf]'")
    pytest.importorskip("gguf", reason="a GGUF file is written with pip install '.[gguf]'")
    directory, here = EMBEDDED / model, torch.device("cpu")
    vocabulary = Tokenizer(directory).vocabulary
    decoder = load_decoder(
        directory, positions=LENGTH, vocabulary=vocabulary, dtype=torch.float32, device=here
    )
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(directory / name, folder / name)
    return {"draft_model": str(write_gguf(folder / f"{model}.gguf", decoder, directory, kind))}


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


def test_a_draft_beside_a_target_of_other_tokens_is_refused(tmp_path: Path) -> None:
    other = Path(shutil.copytree(EMBEDDED / "draft", tmp_path / "other"))
    raw = json.loads((other / "tokenizer.json").read_text(encoding="utf-8"))
    raw["model"]["merges"] = raw["model"]["merges"][:-5]
    (other / "tokenizer.json").write_text(json.dumps(raw), encoding="utf-8")
    role = FusedTargetRole(batch=1, draft_model=str(other), **OPTIONS)
    call = partial(load_served, role, partial(with_draft, role))
    assert_refused(call, ["the tokenizers differ", str(other)], Mismatch)


# --- what a method needs


def test_a_head_drafts_beside_an_emulated_target_on_inputs_that_are_named(
    tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = a_head(tmp_path)
    role = FusedTargetRole(port=0, batch=1, draft="eagle", emulate=PROFILE, **flags, **OPTIONS)
    with BackgroundServer(load_target(role)) as server:
        assert "inputs of layers 2, 4, 6 of outrider-embedded-target" in capsys.readouterr().err
        text = ["--prompt", "def main(argv):", "--max_new_tokens", "24", "--seed", "3", "--json"]
        said = run("fused_client", "--port", server.address.port, *text, "--baseline")
    (record,) = said.records
    assert record["token_ids"] == record["baseline"]["token_ids"]
    assert f"draft beside the target: {flags['draft_model']}" in said.err


def test_a_head_that_cannot_draft_for_a_target_is_refused(tmp_path: Path) -> None:
    nameless = FusedTargetRole(draft="eagle")
    assert_refused(lambda: eagle.find(nameless, tiny_model()), ["--draft eagle", "--draft_model"])
    other = FusedTargetRole(port=0, batch=1, draft="eagle", **a_head(tmp_path, hidden_size=64))
    without_features = ScriptedModel(useless, capacity=100)
    for call, shown in (
        (lambda: load_target(other), ["64", "256"]),
        (lambda: eagle.find(other, without_features), ["cpu or cuda"]),
    ):
        assert_refused(call, shown, UnsupportedModel)


def test_a_substitute_beside_its_target_keeps_keys_of_candidates_only() -> None:
    options = FusedTargetRole(draft="substitute", batch=2, sequence_length=256)
    target: Any = find_target(options).load(options, Capacity(2, 256, 64, 64))
    found = find_draft(options, target)
    draft = found.load(options, Capacity(rows=2, sequence_length=256, spare=40, max_nodes=32)).model
    assert isinstance(draft, SharedCacheModel)
    assert draft.target_cache is target.cache
    assert draft.cache.keys[0].shape == (2, 40 + 1, target.cache.keys[0].shape[2])
    assert draft.decoder.model.embed_tokens is target.decoder.model.embed_tokens


def test_layers_that_are_not_there_and_memory_that_is_the_same_are_refused(run: Run) -> None:
    for words, shown in (
        (f"fused_target --draft substitute --emulate {PROFILE} --port 0", "by --draft_model"),
        ("target --layer_offload host --device cpu", "--layer_offload disk"),
    ):
        run(*words.split()).assert_failed(shown)


# --- GGUF files


CONTENTS: dict[str, tuple[str, type[OutriderError], str]] = {
    "page.gguf": ("<html>", UnsupportedModel, "does not begin with GGUF"),
    "none.gguf": ("", InvalidRequest, "no such file"),
    "model.gguf": ("GGUF", MissingExtra, "pip install '.[gguf]'"),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_what_is_no_gguf_file_is_told_before_llama_cpp_is_needed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, error, said = CONTENTS[name]
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    if content:
        (tmp_path / name).write_text(content, encoding="utf-8")
    role = DraftRole(draft_model=str(tmp_path / name))
    assert_refused(lambda: draft_model.find(role, None), [said], error)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The embedded pair as GGUF files."""
    folder, kinds = tmp_path_factory.mktemp("pair"), {"draft": "Q8_0", "target": "F32"}
    files = {name: a_file(folder, name, kind) for name, kind in kinds.items()}
    return {name: Path(file["draft_model"]) for name, file in files.items()}


@pytest.mark.extended
def test_a_pair_of_files_is_listed_and_its_drafted_text_is_the_targets_own(
    run: Run, pair: dict[str, Path]
) -> None:
    listed = json.loads(run("list", "--json", "--directory", pair["draft"].parent).out)
    for draft in (str(pair["draft"]), "outrider-embedded-draft"):
        assert [draft, str(pair["target"])] in listed["pairs"]
    model = str(pair["target"])
    role = TargetRole(port=0, batch=1, target_model=model, sequence_length=200, max_tree_nodes=16)
    with BackgroundServer(load_target(role)) as server:
        flags = ["--port", server.address.port, "--draft", "model", "--max_new_tokens", "160"]
        flags += ["--temperature", "0.7", "--seed", "3", "--baseline", "--json"]
        for file in (pair["draft"], EMBEDDED / "draft"):
            for waits in ([], ["--tree_nodes", "16"]):
                words = ["--draft_model", file, *waits]
                (made,) = run("run", "def read_lines(path):", *flags, *words).records
                assert made["token_ids"] == made["baseline"]["token_ids"]
                assert made["draft_calls"] > 0 or not waits  # the target may be done before


@pytest.mark.extended
def test_a_tokenizer_made_from_a_file_is_kept_until_the_file_changes(
    pair: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    alone = Path(shutil.copy(pair["draft"], tmp_path))
    made = Tokenizer(alone)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "transformers", None)
        kept = Tokenizer(alone)
        assert (kept.to_json(), kept.template) == (made.to_json(), made.template)
        os.utime(alone, (0, 0))
        assert_refused(lambda: Tokenizer(alone), [".[torch]"], MissingExtra)


@pytest.mark.extended
def test_a_tokenizer_is_taken_where_its_ids_are_the_files_own(
    pair: dict[str, Path], tmp_path: Path
) -> None:
    found = GgufFile.find(str(pair["draft"]))
    assert found.tokenizer.fingerprint() == Tokenizer(EMBEDDED / "target").fingerprint()
    shutil.copytree(pair["draft"].parent, tmp_path / "wrong")
    path = tmp_path / "wrong" / "tokenizer.json"
    raw = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = raw["model"]["vocab"]
    vocabulary["!"], vocabulary['"'] = vocabulary['"'], vocabulary["!"]
    path.write_text(json.dumps(raw), encoding="utf-8")
    with pytest.raises(Mismatch, match=r"id 2 is '\"' there and '!' in the GGUF file"):
        GgufFile.find(str(tmp_path / "wrong" / pair["draft"].name))
    alone = shutil.copyfile(pair["draft"], tmp_path / "draft.gguf")
    with pytest.raises(Mismatch, match=r"id 512 is None, .* put the tokenizer\.json"):
        GgufFile.find(str(alone))  # transformers adds GPT-2's own end of text to its vocabulary


@pytest.mark.extended
def test_options_that_llama_cpp_does_not_have_are_refused(pair: dict[str, Path]) -> None:
    found, room = GgufFile.find(str(pair["draft"])), Capacity(1, 64, 8, 8)
    narrow, neuron = DeviceOptions(dtype="float16"), DeviceOptions(device="neuron")
    assert_refused(lambda: found.load(narrow, room), ["--dtype float16"])
    assert_refused(lambda: found.load(neuron, room), ["--device neuron"], UnsupportedModel)
    assert_refused(lambda: found.sequence_length(2000), ["2 to 1024 (llama.context_length)"])
