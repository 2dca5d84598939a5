"""Models that an operator lists: checked at the start, loaded on first use, named by clients and
by nothing else.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from grpc_comm.client.connection import Connection, connect, list_models
from grpc_comm.server.model_registry import Served
from grpc_comm.server.server import BackgroundServer, Target
from inference.errors import Unavailable
from inference.order import Decode
from inference.sampling import SamplingParams
from outrider.models import devices
from outrider.models.found_model import EMBEDDED
from outrider.options.roles import ServingRole, TargetRole
from outrider.target.model_list import lazily, read_listed
from outrider.target.target import load_target
from tests.support.artifacts import build
from tests.support.commands import Run
from tests.support.models import write_checkpoint_with_tokenizer
from tests.support.refusals import assert_refused
from tests.support.wire_fixtures import LOOPBACK, WAIT, describe, rest, successor_engine


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, and the file that lists them."""
    folder = tmp_path_factory.mktemp("listed")
    one, two = (
        str(write_checkpoint_with_tokenizer(folder / f"secret-{seed}", seed)) for seed in (1, 2)
    )
    small = {"rows": 2, "sequence_length": 128, "dtype": "float32"}
    entries = [
        {"name": "one", "model": one, **small},
        {"name": "two", "model": two, "rows": 1, "device": "cpu"},
    ]
    (folder / "models.json").write_text(json.dumps({"models": entries}))
    return folder


def options(folder: Path, **changes: Any) -> ServingRole:
    files = {"port": 0, "models": str(folder / "models.json"), "dtype": "float32"}
    return TargetRole(**{**files, **changes})


@contextmanager
def named(server: BackgroundServer, name: str, timeout: float = WAIT) -> Iterator[Connection]:
    with connect(str(server.address), model=name, timeout=timeout) as connection:
        yield connection


def test_a_listed_model_is_loaded_once_when_it_is_named_and_writes_its_own_text(
    folder: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is not listed is refused with the list, and a path reaches no loader."""
    first = str(EMBEDDED / "draft")
    with BackgroundServer(load_target(options(folder, model=first))) as server:
        capsys.readouterr()
        for name in ("three", "One", str(folder / "secret-1"), f"{EMBEDDED}/target"):
            call = partial(connect, str(server.address), model=name)
            assert_refused(call, [name, f"{first}, one, two"])
        with named(server, ""):
            assert "secret-" not in capsys.readouterr().err
        for _ in range(2):
            with named(server, "two") as connection:
                said = connection.description
                assert (said.model, said.rows, said.dtype) == ("two", 1, "float32")
        assert capsys.readouterr().err.count("secret-2: ") == 1
        with named(server, "one") as connection:
            said = connection.description
            assert (said.rows, said.sequence_length) == (2, 128)
        there = ["--target_host", server.address]
        findings = json.loads(run("doctor", *there, "--json").out)["findings"]
        listed = {finding["subject"]: finding["text"] for finding in findings}["models"]
        assert listed == f"{first}, one, two"
        text = ["--prompt", "def main", "--max_new_tokens", "12", "--json", "--temperature", "1"]
        text += ["--seed", "5"]
        for number, name in enumerate(("one", "two"), 1):
            (ours,) = run("run", *there, "--model_name", name, *text).records
            model = ["--model", folder / f"secret-{number}", "--dtype", "float32"]
            (alone,) = run("verify_target", *model, *text).records
            assert ours["token_ids"] == alone["token_ids"]


def test_without_a_model_on_the_command_line_the_first_of_the_list_is_the_first(
    folder: Path,
) -> None:
    target = load_target(options(folder))
    assert (target.description.model, list(target.listed)) == ("one", ["two"])
    with BackgroundServer(target) as server:
        assert list_models(str(server.address)) == ["one", "two"]


def test_a_load_that_fails_tells_the_client_a_line_the_log_the_reason_and_is_tried_again(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Path(shutil.copytree(folder / "secret-2", tmp_path / "secret-3"))
    (tmp_path / "models.json").write_text(
        json.dumps({"models": [{"name": "three", "model": str(model)}]})
    )
    with BackgroundServer(load_target(options(tmp_path, model=str(EMBEDDED / "draft")))) as server:
        whole = (model / "model.safetensors").read_bytes()
        for broken in (whole[:-8], whole[:100], b""):
            (model / "model.safetensors").write_bytes(broken)
            with pytest.raises(Unavailable, match="target's log says why") as refused:
                connect(str(server.address), model="three")
            assert str(model) not in str(refused.value)
            assert "three could not be loaded: " in caplog.text
        (model / "model.safetensors").write_bytes(whole)
        with named(server, "three") as connection:
            assert connection.description.model == "three"


class Slow:
    """A loader that waits until it is let go on."""

    def __init__(self) -> None:
        self.loads, self.go = 0, threading.Event()

    def __call__(self, options: ServingRole) -> Served:
        self.loads += 1
        assert self.go.wait(WAIT)
        engine = successor_engine()
        return Served(engine, describe(engine))


def test_while_a_model_is_loaded_others_are_served_and_who_comes_back_gets_it() -> None:
    loaders = {"slow": Slow(), "quick": Slow()}
    loaders["quick"].go.set()
    engine = successor_engine()
    listed = {name: lazily(name, TargetRole(), load) for name, load in loaders.items()}
    with BackgroundServer(Target(engine, describe(engine), LOOPBACK, listed=listed)) as server:
        for _ in range(2):
            words = "slow is not available at|no Outrider target answers"  # that: busy here
            with pytest.raises(Unavailable, match=words), named(server, "slow", timeout=0.2):
                pass
        waiting = threading.Thread(
            target=lambda: connect(str(server.address), model="slow", timeout=WAIT).close()
        )
        waiting.start()
        for name in ("", "quick", "quick"):
            with named(server, name) as connection, closing(connection.session()) as session:
                session.open([1, 2, 3], SamplingParams())
                session.decode(Decode(6))
                assert rest(session) == [4, 5, 6]
        assert waiting.is_alive()
        loaders["slow"].go.set()
        waiting.join(WAIT)
        assert not waiting.is_alive()
        with named(server, "slow") as connection:
            assert connection.description.model == "slow"
    assert [loader.loads for loader in loaders.values()] == [1, 1]


def read(folder: Path, entries: object, **changes: Any) -> dict[str, ServingRole]:
    path = folder / "other.json"
    path.write_text(entries if isinstance(entries, str) else json.dumps({"models": entries}))
    return read_listed(path, options(folder, **changes))


def test_an_entry_takes_from_the_command_line_what_it_leaves_out(folder: Path) -> None:
    model = str(folder / "secret-1")
    own = {"rows": 7, "max_tree_nodes": 9, "dtype": "bfloat16", "sequence_length": 99}
    entries = [{"name": "a", "model": model}, {"name": "b", "model": model, **own}]
    listed = read(folder, entries, batch=3, sequence_length=77, threads=1, model="ignored")
    assert [
        (role.model, role.batch, role.sequence_length, role.dtype, role.threads)
        for role in listed.values()
    ] == [(model, 3, 77, "float32", 1), (model, 7, 99, "bfloat16", 1)]
    assert listed["b"].max_tree_nodes == 9


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quantization": "int8"}, "models[0] has an unknown field 'quantization'"),
        ({"rows": 0}, "models[0].rows is 0: "),
        ({"rows": True}, "models[0].rows is True: "),
        ({"device": "cuda:x"}, "cuda:N"),
        ({"device": "cuda:99"}, "a: --device cuda:99: torch finds"),
        ({"device": "neuron"}, "artifact"),
        ({"dtype": "int4"}, "--dtype int4"),
        ({"sequence_length": 100_000}, "2 to 256"),
        ({"model": "a\0b"}, "models[0].model: "),
        ({"model": "/nowhere"}, "/nowhere"),
        ({"artifact": "/nowhere"}, 'one of "model" and "artifact"'),
        ({"model": None}, 'one of "model" and "artifact"'),
        ({"name": ""}, "models[0].name is '': "),
        ({"name": "a\nb"}, "models[0].name: "),
        ({"name": "a" * 81}, "models[0].name is "),
    ],
)
def test_an_entry_that_cannot_be_served_is_refused_at_the_start_by_name(
    folder: Path, changes: dict[str, Any], words: str
) -> None:
    model = {"name": "a", "model": str(folder / "secret-1")}
    assert_refused(lambda: read(folder, [model | changes]), [words])


def test_a_file_that_lists_nothing_or_half_a_model_or_a_name_twice_is_refused(
    folder: Path, tmp_path: Path
) -> None:
    entry = {"name": "a", "model": str(EMBEDDED / "target")}
    contents: list[tuple[object, str]] = [
        ("{", "is not JSON"),
        ('{"models": []}', "models is []: "),
        ('{"models": [{"name": "a", "model": "b"}], "more": 1}', "unknown field 'more'"),
        ([entry] * 2, "a is listed twice"),
    ]
    for name in ("config.json", "tokenizer.json"):
        model = Path(shutil.copytree(folder / "secret-1", tmp_path / name))
        (model / name).unlink()
        contents.append(([entry | {"model": str(model)}], "other.json: a: "))
    for content, words in contents:
        assert_refused(partial(read, folder, content), [words])
    first = str(folder / "secret-1")
    (tmp_path / "models.json").write_text(json.dumps({"models": [{"name": first, "model": first}]}))
    assert_refused(lambda: load_target(options(tmp_path, model=first)), [first])


def test_an_artifact_is_what_it_was_built_as(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "artifact").mkdir()
    build(tmp_path / "artifact")
    entry = {"name": "a", "artifact": str(tmp_path / "artifact")}
    told = {"dtype": "float32", "device": "cpu", "sequence_length": 100}
    listed = read(folder, [entry | told])["a"]
    assert (listed.artifact, listed.dtype, listed.model) == (entry["artifact"], None, None)
    for changes, shown in (
        ({"dtype": "bfloat16"}, ["bfloat16", "float32"]),
        ({"device": "neuron"}, ["cpu"]),
        ({"rows": 2}, ['"rows"']),
        ({"sequence_length": 121}, ["2 to 120"]),
        ({"artifact": str(folder)}, [str(folder)]),
    ):
        assert_refused(partial(read, folder, [entry | changes]), shown)


def test_a_large_model_that_is_loaded_after_a_small_one_has_torchs_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "_THREADS", 2)
    try:
        for size, threads in ((1_000, 1), (10**9, 2)):
            devices.set_threads(None, size)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(1)
