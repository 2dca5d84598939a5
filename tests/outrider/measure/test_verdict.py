"""The verdict of a comparison and its report, by hand."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from outrider.measure.figures import Row
from outrider.measure.journal import Journal, plan_of
from outrider.measure.plots import draw
from outrider.measure.report import SPEEDS, WIDTH, Report, leader, table, verdict
from outrider.measure.run import (
    AGAIN,
    BASELINE,
    CHAIN,
    FUSED,
    GROWING,
    HYBRID,
    TREE,
)
from tests.outrider.measure.texts import PRICED, rows

MACHINE = {
    "processor": "a CPU",
    "cpus": 2,
    "load": None,
    "commit": "abc",
    "versions": {"torch": "2"},
}
START = {
    "draft": "a draft", "target": "a target", "models": {"device": "cpu"}, "left_out": {},
    "round_trip": 0.001, "shared": False, "environment": MACHINE, "times": [[1, 1, 0.1]],
}  # fmt: skip
RUN = Journal(plan_of({}, []))
RUN.write("start", START)


def report(found: list[Row]) -> Report:
    return Report([], found, RUN)


def test_the_leader_is_faster_than_target_only_or_target_only_itself_or_nobody() -> None:
    def name(seconds: dict[str, float], texts: int = 6) -> str | None:
        found = leader(rows(seconds, texts))
        return None if found is None else found.arm

    assert name({CHAIN: 0.5, TREE: 0.4}) == TREE
    assert name({CHAIN: 3.0, TREE: 2.0}) == BASELINE
    assert name({CHAIN: 0.5, TREE: 0.4}, texts=5) is None
    assert name({AGAIN: 0.4, CHAIN: 0.5}) is None, "the A/A pair is further apart"


def test_the_verdict_names_the_fastest_over_each_link() -> None:
    found = rows({CHAIN: 0.5, GROWING: 0.6}) + rows({CHAIN: 3.0, GROWING: 3.0}, rtt_ms=40)
    line = verdict(found)
    assert f"0 ms: {CHAIN} is fastest, 1.80 [" in line
    assert "40 ms: target-only is fastest" in line


def test_the_verdict_ends_with_the_command_of_the_fastest() -> None:
    found = [
        *rows({HYBRID: 0.5, FUSED: 0.9}),
        *rows({HYBRID: 3.0, FUSED: 0.5}, rtt_ms=20),
        *rows({HYBRID: 3.0}, rtt_ms=80),
        *rows({"with a draft": 0.5}, rtt_ms=90),
    ]
    links = verdict(found).split("; ")
    assert links[0].endswith(": `outrider run`")
    assert links[1].endswith(": `outrider run --preset eagle_sd`, with outrider fused_target")
    assert links[2].endswith(": `outrider run --preset vanilla`")
    assert links[3].endswith("tokens/s).")


def test_the_default_is_the_first_row_over_each_link_and_doubts_are_marked() -> None:
    found = rows({AGAIN: 0.5, CHAIN: 0.5, HYBRID: 0.2}) + rows({HYBRID: 0.4}, rtt_ms=9)
    lines = table(found, SPEEDS)
    assert [line.split()[:2] for line in lines if "(default)" in line] == [
        ["0", HYBRID],
        ["9", HYBRID],
    ]
    assert "(default)" in lines[1]
    assert [line.split()[1] for line in lines if " ? " in line] == ["target-only", "synchronous"]
    assert any(one.startswith("Noise") for one in report(found).notes)
    assert not any(one.startswith("Noise") for one in report(rows({CHAIN: 0.5})).notes)


def test_costs_and_columns_that_say_nothing_are_hidden() -> None:
    heads = table(rows({CHAIN: 0.5}), SPEEDS)[0]
    assert not {"$/1M", "RTT", "kind"} & set(heads.split())
    assert "$/1M" in table(rows({CHAIN: 0.5}, billing=PRICED), SPEEDS)[0]


def test_the_widest_table_of_the_terminal_is_no_wider_than_a_hundred_columns() -> None:
    tree = f"{TREE} 16x12"
    found = rows({tree: 0.5}, billing=PRICED) + rows({tree: 0.5}, rtt_ms=1000, billing=PRICED)
    assert max(map(len, report(found).text().splitlines())) <= WIDTH


def test_titles_of_plots_are_whole_and_bars_stand_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = pytest.importorskip("matplotlib.figure")
    agg, drawn = pytest.importorskip("matplotlib.backends.backend_agg"), list[Any]()
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, *_, **__: drawn.append(self))
    found = rows({"a": 0.5, "b": 0.6, "c": 0.7}, billing=PRICED)
    draw(tmp_path, "a draft for a target on a device; " * 8, found)
    (picture,) = drawn
    canvas = agg.FigureCanvasAgg(picture)
    title = picture.texts[0].get_window_extent(canvas.get_renderer())
    assert 0 <= title.x0 < title.x1 <= picture.bbox.width
    bars = picture.axes[0].patches
    assert len(bars) == 3
    assert all(left.get_x() + left.get_width() < right.get_x() for left, right in pairwise(bars))
