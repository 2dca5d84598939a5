"""GGUF files by name: as drafts and targets over gRPC, their tokenizers, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from grpc_comm.server.server import BackgroundServer
from inference.errors import (
    InvalidRequest,
    Mismatch,
    MissingExtra,
    OutriderError,
    UnsupportedModel,
)
from inference.model.checkpoints.checkpoint import load_decoder
from inference.text.tokenizer import Tokenizer
from outrider.draft_methods import model as draft_model
from outrider.models.found_model import EMBEDDED, Capacity
from outrider.models.other_libraries import GgufFile
from outrider.options.groups import DeviceOptions
from outrider.options.roles import DraftRole, TargetRole
from outrider.target.target import load_target
from tests.support.commands import Run
from tests.support.gguf_models import write_gguf
from tests.support.refusals import assert_refused

PROMPT = "def read_lines(path):"


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
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The embedded pair as GGUF files, with their tokenizer.json beside."""
    pytest.importorskip("llama_cpp", reason="a GGUF file needs pip install '.[gguf]'")
    pytest.importorskip("gguf", reason="a GGUF file is written with pip install '.[gguf]'")
    folder, made = tmp_path_factory.mktemp("pair"), dict[str, Path]()
    for part, kind in (("draft", "Q8_0"), ("target", "F32")):
        directory = EMBEDDED / part
        decoder = load_decoder(
            directory,
            positions=256,
            vocabulary=Tokenizer(directory).vocabulary,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )
        made[part] = write_gguf(folder / f"{part}-{kind}.gguf", decoder, directory, kind)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(EMBEDDED / "target" / name, folder / name)
    return made


@pytest.fixture(scope="module", params=["safetensors", "gguf"])
def port(request: pytest.FixtureRequest, files: dict[str, Path]) -> Iterator[str]:
    name = str(files["target"]) if request.param == "gguf" else None
    role = TargetRole(port=0, batch=1, target_model=name, sequence_length=200, max_tree_nodes=16)
    with BackgroundServer(load_target(role)) as server:
        yield str(server.address.port)


@pytest.mark.extended
@pytest.mark.parametrize("rounds", [[], ["--tree_nodes", "16"]], ids=["never waits", "waits"])
@pytest.mark.parametrize("temperature", ["0", "0.7", "1"])
@pytest.mark.parametrize("draft", ["gguf", "safetensors"])
def test_a_drafted_text_is_the_text_of_the_target_alone(
    run: Run, files: dict[str, Path], port: str, draft: str, temperature: str, rounds: list[str]
) -> None:
    model = files["draft"] if draft == "gguf" else EMBEDDED / "draft"
    flags = ["--port", port, "--draft", "model", "--draft_model", model, *rounds]
    text = ["--max_new_tokens", "160", "--temperature", temperature, "--seed", "3"]
    (made,) = run("run", PROMPT, *flags, *text, "--baseline", "--json").records
    assert made["token_ids"] == made["baseline"]["token_ids"]
    if rounds:  # else the target may be done before the draft's first call
        assert made["draft_calls"] > 0


@pytest.mark.extended
def test_a_tokenizer_made_from_a_file_is_kept_until_the_file_changes(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    alone = Path(shutil.copy(files["draft"], tmp_path))
    made = Tokenizer(alone)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "transformers", None)
        kept = Tokenizer(alone)
        assert (kept.to_json(), kept.template) == (made.to_json(), made.template)
        os.utime(alone, (0, 0))
        assert_refused(lambda: Tokenizer(alone), [".[torch]"], MissingExtra)


@pytest.mark.extended
def test_a_tokenizer_beside_a_file_is_taken_where_its_ids_are_the_files_own(
    files: dict[str, Path], tmp_path: Path
) -> None:
    found = GgufFile.find(str(files["draft"]))
    assert found.tokenizer.fingerprint() == Tokenizer(EMBEDDED / "target").fingerprint()
    shutil.copytree(files["draft"].parent, tmp_path / "wrong")
    path = tmp_path / "wrong" / "tokenizer.json"
    raw = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = raw["model"]["vocab"]
    vocabulary["!"], vocabulary['"'] = vocabulary['"'], vocabulary["!"]
    path.write_text(json.dumps(raw), encoding="utf-8")
    with pytest.raises(Mismatch, match=r"id 2 is '\"' there and '!' in the GGUF file"):
        GgufFile.find(str(tmp_path / "wrong" / files["draft"].name))


@pytest.mark.extended
def test_a_tokenizer_made_from_the_file_is_refused_where_its_ids_are_not_the_files_own(
    files: dict[str, Path], tmp_path: Path
) -> None:
    """transformers adds GPT-2's own end of text to every byte-level vocabulary."""
    path = shutil.copyfile(files["draft"], tmp_path / "draft.gguf")
    with pytest.raises(Mismatch, match=r"id 512 is None, .* put the tokenizer\.json"):
        GgufFile.find(str(path))


@pytest.mark.extended
def test_files_are_listed_with_the_pairs_that_fit(run: Run, files: dict[str, Path]) -> None:
    listed = json.loads(run("list", "--json", "--directory", files["draft"].parent).out)
    assert [str(files["draft"]), str(files["target"])] in listed["pairs"]
    assert ["outrider-embedded-draft", str(files["target"])] in listed["pairs"]


@pytest.mark.extended
def test_options_that_llama_cpp_does_not_have_are_refused(files: dict[str, Path]) -> None:
    found, room = GgufFile.find(str(files["draft"])), Capacity(1, 64, 8, 8)
    narrow, neuron = DeviceOptions(dtype="float16"), DeviceOptions(device="neuron")
    assert_refused(lambda: found.load(narrow, room), ["--dtype float16"])
    assert_refused(lambda: found.load(neuron, room), ["--device neuron"], UnsupportedModel)
    assert_refused(lambda: found.sequence_length(2000), ["2 to 1024 (llama.context_length)"])
