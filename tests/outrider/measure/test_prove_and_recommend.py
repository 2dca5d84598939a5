"""`outrider prove` makes each text twice, names what differs, and writes times that can be used.
`outrider recommend` measures what fits a target, and prints the command that comes of it.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

import outrider
from inference.backends import Model
from inference.backends.neuron import sdk
from inference.times import Times
from inference.times_file import find_profile
from outrider.measure.commands import prove
from outrider.measure.figures import Interval, summarise
from outrider.measure.run import AGAIN, BASELINE
from outrider.measure.verbs import recommend
from outrider.measure.verbs.prove import (
    DRAFTED,
    REPEATS,
    TEMPERATURES,
    GraphTimes,
    memory_lines,
    time_graphs,
    times_table,
    verdict,
)
from outrider.measure.verbs.recommend import choose, command, reason
from outrider.models.found_model import EMBEDDED
from outrider.options.commands import parse
from outrider.options.roles import DraftRole, TargetRole
from outrider.text.completion import Completion
from tests.outrider.measure.texts import key, record, rows
from tests.support.commands import Run
from tests.support.refusals import assert_usage_error
from tests.support.wire_fixtures import background, successor_engine


def test_a_proof_of_the_embedded_pair_makes_equal_texts_and_a_profile_that_a_target_emulates(
    tmp_path: Path,
) -> None:
    (tmp_path / "prompts.txt").write_text("def f(x):\n")
    words = ["--prompt_text", str(tmp_path / "prompts.txt"), "--max_new_tokens", "8"]
    words += ["--out", str(tmp_path), "--usd_per_hour", "1.34", "--threads", "1"]
    assert prove(words) == 0
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["equal"] is True
    *drafted, together = (row for row in found["rows"] if row["arm"] == DRAFTED)
    assert [row["kind"] for row in drafted] == [f"temperature {one:g}" for one in TEMPERATURES]
    assert together["kind"] == "all"
    assert all(row["equal"] == row["compared"] == REPEATS for row in drafted)
    assert "proved: 9 of 9" in (tmp_path / "report.md").read_text()
    times = {
        (one["rows"], one["nodes"]): one["seconds"]["value"]
        for one in found["times"]
        if one["seconds"]
    }
    emulated = find_profile(str(tmp_path / "profile.json"))
    assert emulated.seconds(1, 1, 0) == times[min(times)]
    assert set(emulated.nodes) == {nodes for _, nodes in times}


def test_a_draft_that_is_not_on_this_machine_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert_usage_error(capsys, prove, ["--draft", "eagle"], ["eagle"])


def test_a_text_that_differs_proves_nothing_and_a_slow_one_is_no_failure() -> None:
    other = record(8, 1, 0.5)
    other["token_ids"] = [7, *other["token_ids"][1:]]
    differing = summarise({key(BASELINE): record(8, 1, 0.5), key(DRAFTED): other})
    assert verdict(differing)[0].startswith("NOT proved: 0 of 1 texts equal")
    slow = verdict(rows({DRAFTED: 3.0}))
    assert slow[0].startswith("proved: 6 of 6")
    assert "target-only is fastest" in slow[1]


def test_a_shape_that_fails_has_its_own_reason_and_no_seconds() -> None:
    reason = "out of memory"
    times = GraphTimes({(1, 1): Interval(0.03, 0.03, 0.03)}, {(4, 16): reason})
    lines = times_table(times, "trn1")
    assert any(line.endswith(reason) for line in lines)
    assert "256 GB/s" in lines[-1]
    failed = {"rows": 4, "nodes": 16, "seconds": None, "failure": reason}
    assert times.record()[1] == failed


class Counting:
    """A model that takes one row, and fails at 64 nodes."""

    rows, max_nodes, capacity = 1, 128, 512

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        return rows, nodes

    def choose(self, segments: Any) -> None:
        if len(segments[0].tokens) == 64:
            raise RuntimeError("no graph of 64 nodes")


def test_only_what_was_measured_is_called_measured() -> None:
    model: Model = Counting()  # type: ignore[assignment]
    found = time_graphs(model, 512)
    assert found.seconds.keys() == {(1, 1), (1, 16), (1, 128)}
    assert found.failures == {
        (1, 64): "no graph of 64 nodes",
        (4, 16): "the target was loaded with 1 rows",
    }


def test_the_peak_memory_of_each_core_is_read_from_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"neuron_core0/stats": (15 << 30, 1 << 29), "neuron_core1/stats": (0, 0)}
    for core, (tensors, rings) in sizes.items():
        for name, size in {"tensors": tensors, "dma_rings": rings, "constants": 0}.items():
            counter = tmp_path / "neuron0" / core / "memory_usage" / "device_mem" / name
            counter.mkdir(parents=True)
            (counter / "peak").write_text(f"{size}\n")
            (counter / "total").write_text("7\n")
    monkeypatch.setattr(sdk, "COUNTERS", tmp_path)
    assert memory_lines(sdk.memory_peaks()) == [
        "memory of neuron0/neuron_core0: at most 15.50 GiB since the driver was loaded "
        "(dma_rings 0.50 GiB, tensors 15.00 GiB)"
    ]
    monkeypatch.setattr(sdk, "COUNTERS", tmp_path / "missing")
    assert memory_lines(sdk.memory_peaks()) == []


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
