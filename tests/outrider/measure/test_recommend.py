"""Verb recommend: what fits a target, what is measured, and the command that comes of it."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

import outrider
from inference.times import Times
from outrider.measure.run import AGAIN, BASELINE
from outrider.measure.verbs import recommend
from outrider.measure.verbs.recommend import choose, command, reason
from outrider.models.found_model import EMBEDDED
from outrider.options.commands import parse
from outrider.options.roles import DraftRole, TargetRole
from outrider.text.completion import Completion
from tests.outrider.measure.texts import rows
from tests.support.commands import Run
from tests.support.wire_fixtures import background, successor_engine

SERVED = TargetRole(port=0, batch=1)
BRIEF = ["--max_new_tokens", "4"]


@pytest.fixture(autouse=True)
def few_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recommend, "KINDS", ("code",))


def test_what_fits_is_measured_and_the_command_runs(
    port: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    (tmp_path / "draft.gguf").write_bytes(b"GGUF")
    target, out = f"127.0.0.1:{port}", tmp_path / "new"
    flags = ["--target_host", target, *BRIEF, "--draft_model", tmp_path, "--out", out]
    ended = run("recommend", *flags)
    assert ended.code == 0
    figures = json.loads((out / "report.json").read_text())
    arms = {"target-only", "copied text", "outrider-embedded-draft", AGAIN}
    assert {row["arm"] for row in figures["rows"]} == arms
    assert len({row["texts"] for row in figures["rows"]}) == 1
    assert "half of the target's" in figures["left_out"]["outrider-embedded-target"]
    left_out = " ".join(ended.out.split()).partition("Left out: ")[2]
    assert ".[gguf]" in left_out.partition("draft.gguf")[2], "what it needs to be loaded"
    assert ended.out.splitlines()[-1] == figures["command"]
    words = shlex.split(figures["command"])
    assert words[:2] == ["outrider", "run"]
    chosen = parse(words[1:])
    assert isinstance(chosen, DraftRole)
    assert chosen.target_host == target
    assert run(*words[1:], *BRIEF).code == 0


def test_published_drafts_are_listed_and_a_run_without_texts_is_an_error(
    tmp_path: Path, run: Run
) -> None:
    named = tmp_path / "qwen2.5-coder-7b"
    named.symlink_to(EMBEDDED / "target", target_is_directory=True)
    with outrider.serve(port=0, batch=1, model=str(named), sequence_length=8) as served:
        ended = run("recommend", "--target_host", served.address, *BRIEF)
    ended.assert_failed("no text was generated: every prompt is too long")
    assert "published, not here: Qwen/Qwen2.5-Coder-0.5B-Instruct" in ended.out


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


def test_a_target_whose_tokenizer_is_not_here_is_refused_in_one_line(run: Run) -> None:
    with background(successor_engine()) as server:
        refused = run("recommend", "--target_host", server.address)
    refused.assert_failed("no model on this machine has the tokenizer of successor")
