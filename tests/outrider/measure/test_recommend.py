"""Verb recommend: what fits a target, what is measured, and the command that comes of it."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import outrider
from inference.times import Times
from outrider.cli import main
from outrider.measure.run import AGAIN, BASELINE
from outrider.measure.verbs import recommend
from outrider.measure.verbs.recommend import choose, command, reason
from outrider.models.found_model import EMBEDDED
from outrider.options.commands import parse
from outrider.options.roles import DraftRole
from outrider.text.completion import Completion
from tests.outrider.measure.texts import rows
from tests.support.wire_fixtures import background, successor_engine

WAYS = ["target-only", "copied text", "outrider-embedded-draft"]
BRIEF = ["--max_new_tokens", "4"]


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    """The embedded target's address."""
    with outrider.serve(port=0, batch=1) as served:
        yield served.address


@pytest.fixture(autouse=True)
def few_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recommend, "KINDS", ("code",))


def test_what_fits_is_measured_and_the_command_runs(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new"
    assert main(["recommend", "--target_host", target, *BRIEF, "--out", str(out)]) == 0
    told, figures = capsys.readouterr().out, json.loads((out / "report.json").read_text())
    assert {row["arm"] for row in figures["rows"]} == {*WAYS, AGAIN}
    assert len({row["texts"] for row in figures["rows"]}) == 1
    assert "half of the target's" in figures["left_out"]["outrider-embedded-target"]
    assert told.splitlines()[-1] == figures["command"]
    words = shlex.split(figures["command"])
    assert words[:2] == ["outrider", "run"]
    chosen = parse(words[1:])
    assert isinstance(chosen, DraftRole)
    assert chosen.target_host == target
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
    line = " ".join(told.split()).partition("Left out: ")[2]
    assert ".[gguf]" in line.partition("draft.gguf")[2]


def test_published_drafts_are_listed_and_a_run_without_texts_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = tmp_path / "qwen2.5-coder-7b"
    named.symlink_to(EMBEDDED / "target", target_is_directory=True)
    with outrider.serve(port=0, batch=1, model=str(named), sequence_length=8) as served:
        assert main(["recommend", "--target_host", served.address, *BRIEF]) == 1
    told = capsys.readouterr()
    assert "published, not here: Qwen/Qwen2.5-Coder-0.5B-Instruct" in told.out
    assert "no text was generated: every prompt is too long" in told.err


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
    line = command({"target_host": "a b", "baseline": True, "insecure": False, "threads": 2})
    assert line == "outrider run 'def main():' --target_host 'a b' --baseline --threads 2"


def test_a_target_whose_tokenizer_is_not_here_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with background(successor_engine()) as server:
        assert main(["recommend", "--target_host", str(server.address)]) == 1
    told = capsys.readouterr().err
    assert "no model on this machine has the tokenizer of successor" in told
    assert told.startswith("error: ")
