"""Every JSON file that is read here, spoilt in every way: one line that names the file."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest

from grpc_comm.server.server import BackgroundServer
from inference.errors import BadArtifact, InvalidRequest, OutriderError
from inference.files.artifact import (
    MANIFEST,
    DraftBucket,
    FusedPart,
    RoundBucket,
    read_manifest,
    write_manifest,
)
from inference.files.json_file import read_json
from inference.model.checkpoints.config import parse_config, read_config
from inference.model.checkpoints.weight_files import weight_files
from inference.planner.acceptance import SHIPPED, read_acceptance
from inference.text.tokenizer import Tokenizer
from inference.times_file import PROFILES, StoredTimes, find_profile
from inference.tree.tree_shape import Branches
from outrider.cli import main
from outrider.models.found_model import EMBEDDED
from outrider.options.roles import TargetRole
from outrider.target.model_list import read_listed
from outrider.target.target import load_target
from tests.support.artifacts import FakeBuilder, build
from tests.support.models import TINY
from tests.support.refusals import assert_refused

Steps = tuple[str | int, ...]
"""Names and indices that lead to a value."""

_MARK = "the value that is replaced"

WHOLE = (
    *(b"", b'{"a": ', b"[]", b"{}", b"null", b'"text"', b"1", b"1" * 10_000, b"1e999", b"NaN"),
    *(b"\0" * 64, b'{"a": "\xff\xfe"}', '{"a": 1}'.encode("utf-16"), b"[" * 100 + b"]" * 100),
    b"[" * 100_000 + b"]" * 100_000,
    b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
)
"""What may stand in the place of a whole file."""

VALUES = (
    *("null", "true", "0", "-1", "0.5", str(2**31), "9" * 400, "9" * 10_000, "1e308", "1e999"),
    *("-Infinity", "NaN", '""', '"x"', '"\\u0000"', '"one\\ntwo"', '"\\ud800"', '"../../x"'),
    *("[]", "{}", "[null]", '{"x": null}', '{"\\ud800\\n": 1}', "[" * 200 + "]" * 200),
    "[" * 5_000 + "]" * 5_000,
)
"""What may stand in the place of a value: as JSON, since some of it is no value of Python's."""


def spoilt(content: Any, value: str | None) -> Iterator[tuple[Steps, bytes]]:
    """The content with one value replaced, or left out: each in turn, of lists the first and the
    last.
    """
    for steps in places(content):
        changed = copy.deepcopy(content)
        holder = changed
        for step in steps[:-1]:
            holder = holder[step]
        if value is None:
            del holder[steps[-1]]
            yield steps, json.dumps(changed).encode()
        else:
            holder[steps[-1]] = _MARK
            yield steps, json.dumps(changed).replace(json.dumps(_MARK), value, 1).encode()


def places(content: Any) -> Iterator[Steps]:
    """Of all values within the content."""
    if isinstance(content, dict):
        names: list[str | int] = list(content)
    else:
        names = sorted({0, len(content) - 1}) if isinstance(content, list) and content else []
    for name in names:
        yield (name,)
        yield from ((name, *more) for more in places(content[name]))


LLAMA_3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64} | {
    f"{name}_freq_factor": factor for name, factor in (("low", 1.0), ("high", 4.0))
}


class Kind(NamedTuple):
    """A file that is read here.

    content: what is spoilt
    read: reads it, in a directory of its own
    named: a value within it, another in its place as JSON, and what the refusal says of it
    whole: what is read without an error; None for the content
    """

    name: str
    content: Any
    read: Callable[[Path], object]
    named: tuple[Steps, str, str]
    whole: Any = None


def _model(path: Path) -> object:
    (path.parent / "config.json").write_text(json.dumps(TINY))
    return read_config(path.parent)


def _indexed(path: Path) -> object:
    (path.parent / "a.safetensors").touch()
    return weight_files(path.parent)


@cache
def _manifest() -> Any:
    with TemporaryDirectory() as directory:
        plain = build(Path(directory) / "out")
        rounds = (RoundBucket.of(Branches((2, 1)), 2, 40, 47, sampled=True),)
        beside = FusedPart("draft", "f1", TINY, (DraftBucket(2, 8, 40, 1, 1, False, 47),), rounds)
        write_manifest(Path(directory), replace(plain, fused=beside, host={"machine": "any"}))
        return json.loads((Path(directory) / MANIFEST).read_text())


def _read_artifact(path: Path) -> object:
    manifest = read_manifest(path.parent)
    assert manifest.fused is None or parse_config(manifest.fused.config)
    return parse_config(manifest.config), manifest.digest()


LISTED: list[dict[str, Any]] = [
    {"name": "a", "model": str(EMBEDDED / "draft"), "device": "cpu", "rows": 2, "dtype": "float32"},
    {"name": "b", "artifact": "/nowhere"},
]


KINDS: dict[str, Callable[[], Kind]] = {
    "config": lambda: Kind(
        "config.json",
        TINY | {"head_dim": 4, "rope_scaling": LLAMA_3, "sliding_window": 8},
        lambda path: read_config(path.parent),
        (("rope_scaling", "factor"), "NaN", "rope_scaling.factor is nan"),
    ),
    "generation config": lambda: Kind(
        "generation_config.json",
        {"eos_token_id": [1, 2]},
        _model,
        (("eos_token_id", 0), '"x"', "eos_token_id[0] is 'x'"),
    ),
    "index": lambda: Kind(
        "model.safetensors.index.json",
        {"weight_map": {"x": "a.safetensors"}},
        _indexed,
        (("weight_map", "x"), '"../a.safetensors"', "weight_map.x is '../a.safetensors'"),
    ),
    "manifest": lambda: Kind(
        MANIFEST,
        _manifest(),
        _read_artifact,
        (("buckets", 0, "sampled"), "1", "buckets[0].sampled is 1"),
    ),
    "models": lambda: Kind(
        "list.json",
        {"models": LISTED[1:]},
        lambda path: read_listed(path, TargetRole()),
        (("models", 0, "artifact"), "7", "models[0].artifact is 7"),
        {"models": LISTED[:1]},
    ),
    "time profile": lambda: Kind(
        "own.json",
        _sound(next(PROFILES.glob("*.json"))),
        lambda path: find_profile(str(path)),
        (("times", 0, 0), "1.5", "times[0][0] is 1.5"),
    ),
    "acceptance": lambda: Kind(
        "pair.json",
        {name: value for name, value in _sound(SHIPPED).items() if name != "origin"},
        read_acceptance,
        (("rates", "tries", 0), "9" * 400, "rates.tries[0] is 9999"),
    ),
}


def _sound(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def one_line(error: Exception, path: Path) -> None:
    """What a user is shown of an error: it can be printed, and says which file."""
    said = str(error)
    said.encode()
    assert len(said.splitlines()) == 1
    assert len(said) < 1000
    names = (path.name, path.parent.name, "config.json")  # whose contents a manifest holds
    assert any(name in said for name in names)


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """A file may be understood all the same, and is else refused in one line."""
    try:
        yield
    except OutriderError as error:
        one_line(error, path)


@pytest.mark.parametrize("which", KINDS)
def test_a_file_is_read_where_it_is_sound_and_else_refused_in_one_line(
    which: str, tmp_path: Path
) -> None:
    kind = KINDS[which]()
    path = tmp_path / kind.name
    path.mkdir()
    with refusing(path):
        kind.read(path)
    path.rmdir()
    path.write_text(json.dumps(kind.whole or kind.content))
    kind.read(path)
    for content in WHOLE:
        path.write_bytes(content)
        if (path.name, content) == ("generation_config.json", b"{}"):  # all may be left out
            kind.read(path)
            continue
        with pytest.raises(OutriderError) as refused:
            kind.read(path)
        one_line(refused.value, path)
    for number, value in enumerate((*VALUES, None)):  # each of three places has a third of them
        for _, content in islice(spoilt(kind.content, value), number % 3, None, 3):
            path.write_bytes(content)
            with refusing(path):
                kind.read(path)
    steps, value, shown = kind.named
    (content,) = [changed for place, changed in spoilt(kind.content, value) if place == steps]
    path.write_bytes(content)
    with pytest.raises(OutriderError) as refused:
        kind.read(path)
    assert f"{kind.name} field {shown}" in str(refused.value)


# --- tokenizers, which a library reads


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_spoilt_tokenizer_is_one_line(name: str, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(EMBEDDED / "draft", directory, ignore=shutil.ignore_patterns("*.safetensors"))
    sound = _sound(directory / name)
    wrong: list[Any] = [None, 7, [[[]]], {"x": 1}]
    changes = [json.dumps(sound | {field: value}).encode() for field in sound for value in wrong]
    for content in [*WHOLE, *changes]:
        (directory / name).write_bytes(content)
        with refusing(directory):
            Tokenizer(directory).fingerprint()


# --- what is kept for the next run


def test_a_spoilt_profile_is_told_of_once_and_measured_again(tmp_path: Path) -> None:
    stored = StoredTimes(tmp_path, "draft", "a draft", {"device": "cpu"})
    stored.store({(1, 1): 0.5})
    path, told = stored.path, list[str]()
    foreign = json.dumps(_sound(path) | {"source": "Measured: device cuda."}).encode()
    for content in (*WHOLE, foreign):
        path.write_bytes(content)
        told.clear()
        assert stored.load(told.append) is None
        (line,) = told
        assert path.name in line
        assert line.endswith("they are measured again")
    stored.store({(1, 1): 0.7})
    assert stored.load(told.append) == {(1, 1): 0.7}


def test_spoilt_notes_of_a_build_are_built_again(tmp_path: Path) -> None:
    build(tmp_path / "out")
    for content in WHOLE:
        for path in (tmp_path / "out" / ".build").glob("*.json"):
            path.write_bytes(content)
        (tmp_path / "out" / MANIFEST).write_bytes(content)
        builder = FakeBuilder()
        build(tmp_path / "out", builder)
        assert builder.asked[0] == "weights"
        assert builder.asked[-1] == "joint"


REPEATED = "".join(f"def {name}(a, b):\n    return a + b\n\n\n" for name in ("add", "plus", "sum"))


def test_target_and_draft_start_beside_spoilt_caches_and_replace_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def notes_of_run() -> list[str]:
        with BackgroundServer(load_target(TargetRole(port=0, batch=1, max_tree_nodes=4))) as server:
            # a busy machine leaves times to estimate, which are not kept
            words = f"--role draft --port {server.address.port} --max_new_tokens 48 --seed 3"
            # so that copies are sent at once
            assert main([*words.split(), "--measure_first", "--prompt", REPEATED]) == 0
        return [line for line in capsys.readouterr().err.splitlines() if " not used" in line]

    assert notes_of_run() == []
    kept = list(tmp_path.rglob("*.json"))
    assert {path.parent.name for path in kept} == {"profiles", "acceptance"}
    for path in kept:
        path.write_bytes(b"[" * 100_000)
    notes = notes_of_run()
    assert [sum(path.name in line for line in notes) for path in kept] == [1] * len(kept)
    for path in kept:
        field = "version" if path.parent.name == "acceptance" else "seconds"
        read_json(path, InvalidRequest).field(field)


@pytest.mark.parametrize(
    "name",
    [
        "./manifest.json",
        "MANIFEST.json",
        "manifest.json/x",
        "a//b",
        "a/",
        ".",
        "a/./b",
        "a\nb",
        "c",
    ],
)
def test_a_manifest_that_names_no_file_is_refused(name: str, tmp_path: Path) -> None:
    """The manifest itself, a path that is written in another way, one that another is below."""
    files = dict.fromkeys((name, "c/d"), "0" * 64)
    write_manifest(tmp_path, replace(build(tmp_path / "out"), files=files))
    assert_refused(lambda: read_manifest(tmp_path), [repr(name)], BadArtifact)
