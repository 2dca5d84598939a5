"""`outrider prove` makes each text twice, names what differs, and writes times that can be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inference.backends import Model
from inference.backends.neuron import sdk
from inference.times_file import find_profile
from outrider.measure.commands import prove
from outrider.measure.figures import Interval, summarise
from outrider.measure.run import BASELINE
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
from tests.outrider.measure.texts import key, record, rows
from tests.support.refusals import assert_usage_error


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
