"""Verb recommend: what fits a target, what is measured, and the command that comes of it."""

from __future__ import annotations

import io
import json
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants, file_download

import outrider
from grpc_comm.translate import Description
from inference.errors import InvalidRequest, Mismatch
from inference.text import Tokenizer
from inference.times import Times
from inference.tokenizer_settings import TokenizerIdentity
from outrider.cli import main
from outrider.measure.arms import AGAIN, BASELINE
from outrider.measure.link import LinkShape, shaped_link
from outrider.measure.options import RecommendOptions
from outrider.measure.recommend import choose, command, loaded, measure, reason
from outrider.models.directories import EMBEDDED
from outrider.models.models_here import ModelHere, find_models
from outrider.models.published_models import (
    PublishedModel,
    fetch,
    fetch_agreed,
    judged,
    published_for,
)
from outrider.options.parsing import parse
from outrider.options.roles import DraftRole
from outrider.text.completion import Completion
from tests.outrider.measure.texts import rows
from tests.support.hub_server import hub_server
from tests.support.wire_fixtures import background, describe, successor_engine

EMBEDDED_TOKENIZER = Tokenizer(EMBEDDED / "target").identity
WAYS = ["target-only", "copied text", "outrider-embedded-draft"]
BRIEF = ["--max_new_tokens", "16", "--seconds", "60"]
OPEN = PublishedModel("acme", "acme/open", 1, "float16", 1.2, "apache-2.0", 1024)


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    """The embedded target's address."""
    with outrider.serve(port=0, batch=1) as served:
        yield served.address


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A hub with two models; yields the cache, which is not there before something is fetched."""
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf" / "draft.gguf").write_bytes(b"GGUF")
    models = {OPEN.repository: EMBEDDED / "draft", "acme/gguf": tmp_path / "gguf"}
    with hub_server(models) as address:
        monkeypatch.setattr(constants, "ENDPOINT", address)
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        for module in (constants, file_download):
            monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        yield tmp_path / "hub"


def answer(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    """Let a user at a terminal answer with this line."""
    stdin = io.StringIO(line)
    monkeypatch.setattr(stdin, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", stdin)


def here(name: str = "draft", **changes: Any) -> ModelHere:
    """A model on this machine."""
    return ModelHere(name, Path(name), 1000, 500_000_000, "t0")._replace(**changes)


@pytest.fixture
def served() -> Description:
    """The description of a target that is called acme-7b."""
    engine = successor_engine()
    named = {**vars(describe(engine)), "model": "acme-7b"}
    return Description(**named)


def test_what_fits_is_measured_and_the_command_runs(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    assert main(["recommend", "--target_host", target, *BRIEF, "--json", str(file)]) == 0
    told, figures = capsys.readouterr().out, json.loads(file.read_text(encoding="utf-8"))
    assert {row["arm"] for row in figures["rows"]} == {*WAYS, AGAIN}
    assert len({row["texts"] for row in figures["rows"]}) == 1
    assert "half of the target's" in figures["left_out"]["outrider-embedded-target"]
    assert told.splitlines()[-1] == figures["command"]
    words = shlex.split(figures["command"])
    assert words[:2] == ["outrider", "run"]
    chosen = parse(words[1:])
    assert isinstance(chosen, DraftRole)
    assert chosen.connection.target_host == target
    assert main([*words[1:], "--max_new_tokens", "4"]) == 0


def test_a_draft_that_cannot_be_loaded_is_listed_with_what_it_needs(
    target: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    (tmp_path / "draft.gguf").write_bytes(b"GGUF")
    words = ["recommend", "--target_host", target, *BRIEF, "--draft_model", str(tmp_path)]
    assert main(words) == 0
    told = capsys.readouterr().out
    line = " ".join(told.split()).partition("left out: ")[2]
    assert ".[gguf]" in line.partition("draft.gguf")[2]


def test_a_draft_of_another_tokenizer_or_of_the_targets_size_is_left_out(
    served: Description,
) -> None:
    assert judged(here(), served).refusal == ""
    assert "tokenizer" in judged(here(family="other"), served).refusal
    assert "half" in judged(here(parameters=4_000_000_000), served).refusal
    assert judged(here("acme-7b"), served).refusal
    assert "memory" in judged(here(size=2**50), served).refusal
    assert judged(here(refusal="it has no weights"), served).refusal == "it has no weights"


def test_published_drafts_are_of_the_targets_family_and_smaller() -> None:
    found = published_for("Qwen/Qwen2.5-Coder-7B-Instruct", [])
    assert [one.megabytes for one in found] == sorted(one.megabytes for one in found)
    assert found[0].repository == "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF"
    assert all(one.millions <= 3500 for one in found)
    assert published_for("Qwen/Qwen2.5-Coder-0.5B", []) == []
    assert published_for("acme/acme-7b", []) == []
    for model in ("Qwen3-32B", "Llama-3.1-8B", "Mistral-Small-3.1-24B", "gemma-3-27b-it"):
        assert published_for(model, []), model


def test_a_published_draft_that_is_here_is_not_offered_again() -> None:
    first, *others = published_for("Qwen2.5-Coder-7B", [])
    again = here(str(Path("cache") / first.file), directory=Path("cache") / first.file)
    assert published_for("Qwen2.5-Coder-7B", [again]) == others


def test_nothing_is_fetched_that_was_not_asked_for(
    hub: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = tmp_path / "qwen2.5-coder-7b"
    named.symlink_to(EMBEDDED / "target", target_is_directory=True)
    with outrider.serve(port=0, batch=1, model=str(named)) as served:
        assert main(["recommend", "--target_host", served.address, "--seconds", "0"]) == 1
    told = capsys.readouterr()
    assert "published, not here: Qwen/Qwen2.5-Coder-0.5B-Instruct" in told.out
    assert "--seconds: too few" in told.err
    assert not hub.exists()


@pytest.mark.parametrize("line", ["n\n", "\n"])
def test_nothing_is_fetched_without_a_yes(
    line: str, hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, line)
    fetch_agreed([OPEN], EMBEDDED_TOKENIZER)
    assert not hub.exists()


def test_nothing_is_fetched_where_nobody_can_be_asked(
    hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(InvalidRequest, match="nobody can be asked"):
        fetch_agreed([OPEN], EMBEDDED_TOKENIZER)
    assert not hub.exists()


def test_a_yes_fetches_what_has_the_targets_tokenizer(
    hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, "y\n")
    fetch_agreed([OPEN], EMBEDDED_TOKENIZER)
    assert list(hub.glob("**/*.safetensors"))


@pytest.mark.usefixtures("hub")
def test_a_gguf_file_is_fetched_with_its_checkpoints_tokenizer_beside() -> None:
    draft = replace(OPEN, repository="acme/gguf", file="draft.gguf", tokenizer=OPEN.repository)
    assert {"draft.gguf", "tokenizer.json"} <= {
        path.name for path in fetch(draft, EMBEDDED_TOKENIZER).parent.iterdir()
    }


def test_no_weights_of_another_tokenizer_are_fetched(
    hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, "y\n")
    with pytest.raises(Mismatch, match="acme/open is not fetched"):
        fetch_agreed([OPEN], TokenizerIdentity("another"))
    assert not list(hub.glob("**/*.safetensors"))


def texts_over(address: str, target: Description) -> dict[str, list[list[int]]]:
    """The texts of every way as ids; on a slow machine there are fewer."""
    options = RecommendOptions(target_host=address)
    models = [judged(one, target) for one in find_models([])]
    with ExitStack() as stack:
        ways = list(loaded(options, models, target, stack, {}))
        known, _ = measure(ways, time.perf_counter() + 30, 16)
        return {
            way.name: [
                text["token_ids"] for key, text in known.texts.items() if key.arm == way.name
            ]
            for way in ways
        }


def test_a_far_target_changes_no_text(target: str, served: Description) -> None:
    named = {
        "model": "outrider-embedded-target",
        "tokenizer_fingerprint": EMBEDDED_TOKENIZER.fingerprint,
    }
    known = Description(**{**vars(served), **named})
    near = texts_over(target, known)
    with shaped_link(target, LinkShape(delay_ms=75)) as link:
        far = texts_over(link.address, known)
    assert list(near) == list(far) == WAYS
    for texts in [*near.values(), *far.values()]:
        assert texts
        for one, own in zip(texts, near[BASELINE], strict=False):
            assert one[: len(own)] == own[: len(one)]  # a slow machine cuts some


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [({"a": 1.1, "b": 1.2}, BASELINE), ({"a": 0.9, "b": 0.4}, "b"), ({AGAIN: 0.4, "b": 0.4}, "b")],
)
def test_a_draft_is_recommended_where_it_is_clearly_faster_and_beyond_the_noise(
    seconds: dict[str, float], chosen: str
) -> None:
    assert choose(rows(seconds)) == chosen
    assert choose(rows({AGAIN: 0.3, "b": 0.4})) == BASELINE


def test_the_targets_times_are_the_reason_where_each_node_costs_as_much_as_the_first() -> None:
    law = Times({(1, nodes): 0.03 * nodes for nodes in (1, 2, 4, 8, 16)})
    told = reason(law, Completion(0, "", 0, 1), 0.02)
    assert "a forward pass of 2 nodes takes 2 times as long" in told
    flat = Times({(1, nodes): 0.03 for nodes in (1, 2, 4, 8, 16)})
    assert "without accepted candidates" in reason(flat, Completion(0, "", 0, 1), 0.02)


def test_a_command_says_what_was_given_and_nothing_that_is_off() -> None:
    line = command({"target_host": "a b", "tls": True, "insecure": False, "threads": 2})
    assert line == "outrider run 'def main():' '--target_host=a b' --tls --threads=2"


def test_a_target_whose_tokenizer_is_not_here_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with background(successor_engine()) as server:
        assert main(["recommend", "--target_host", str(server.address)]) == 1
    told = capsys.readouterr().err
    assert "no model on this machine has the tokenizer of successor" in told
    assert told.startswith("error: ")


def test_nobody_who_listens_is_refused_before_anything_is_loaded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["recommend", "--target_host", "127.0.0.1:1"]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err
