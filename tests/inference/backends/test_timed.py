"""An emulated target takes the time that its profile says, and calls itself emulated."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inference.backends import Chosen, Ranked, Segment, timed
from inference.backends.timed import TimedModel, TimeProfile, find_profile, profile_names
from outrider.cli import main
from outrider.target.target import READY
from tests.support.clock import Clock
from tests.support.models import segment
from tests.support.refusals import assert_refused
from tests.support.repository import ROOT
from tests.support.wire_fixtures import Successor

COMPUTED, MEASURED = "llama-3.1-8b-trn1.2xlarge-computed", "llama-3.1-8b-trn1.2xlarge-measured"
TRN2 = ("llama-3.1-8b-trn2.3xlarge-computed", "llama-3.1-8b-trn2.3xlarge-published")


def profile(
    pass_seconds: float = 0.0, slot: float = 0.0, node: float = 0.0, node_slot: float = 0.0
) -> TimeProfile:
    sizes: dict[str, Any] = {"rows": (1, 4, 8), "nodes": (1, 8, 64), "slot_step": 128}
    return TimeProfile("test", "a test", "nothing", pass_seconds, slot, node, node_slot, **sizes)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(0.0)

    def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr(timed, "time", SimpleNamespace(perf_counter=clock, sleep=sleep))
    return clock


class Slow(Successor):
    """Takes so many seconds for a forward."""

    def __init__(self, clock: Clock, seconds: float = 0.0) -> None:
        super().__init__(rows=2)
        self.clock, self.seconds = clock, seconds

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        self.clock.now += self.seconds
        return super().choose(segments)

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        return [Ranked(np.zeros((1, k), dtype=np.int32), np.zeros((1, k), dtype=np.float32))]


def test_a_forward_takes_the_profiles_time(clock: Clock) -> None:
    model = TimedModel(Slow(clock, 0.1), profile(0.02, node=0.001))
    chosen = model.choose([segment(0, 3), segment(1, 20)])
    assert clock.now == pytest.approx(4 * 64 * 0.001)  # 2 rows run as 4, 20 nodes as 64
    assert [row.tokens.tolist() for row in chosen] == [list(range(2, 5)), list(range(2, 22))]
    assert model.rank([segment(0, 1)], 2)[0].ids.shape == (1, 2)
    assert clock.now == pytest.approx(0.256 + 0.02)
    assert model.emulated_seconds == pytest.approx(0.256 + 0.02)
    assert model.overruns == 0


def test_a_model_slower_than_the_profile_is_counted(clock: Clock) -> None:
    model = TimedModel(Slow(clock, 0.03), profile(0.01))
    for _ in range(2):
        model.choose([segment(0, 1)])
    assert (model.forwards, model.overruns) == (2, 2)
    assert model.late_seconds == pytest.approx(2 * 0.02)
    assert "emulated test: 2 forwards, 2 longer than the profile says" in model.account()


def test_a_forward_costs_the_slower_of_traffic_and_arithmetic_at_the_padded_shape() -> None:
    one = profile(0.010, slot=1e-6, node=1e-4, node_slot=1e-7)
    assert one.seconds(1, 1, 0) == 0.010
    assert one.seconds(2, 1, 100) == pytest.approx(0.010 + 4 * 128 * 1e-6)
    assert one.seconds(5, 9, 129) == pytest.approx(8 * 64 * (1e-4 + 256 * 1e-7))
    assert one.seconds(9, 1, 0) == pytest.approx(2 * 0.010)  # 8 rows, then 1
    assert one.seconds(1, 70, 0) == pytest.approx(2 * 0.010)  # 64 nodes, then 8
    assert (one.padded(2, 9), one.padded(9, 70)) == ((4, 64), (9, 72))


@pytest.mark.parametrize("name", [COMPUTED, MEASURED])
def test_more_rows_nodes_or_context_never_cost_less(name: str) -> None:
    one = find_profile(name)
    for rows, nodes, context in product(
        (1, 3, 4, 5, 63, 64, 65, 130), (1, 2, 8, 9, 64, 65, 256, 257), (0, 1, 256, 257, 4000)
    ):
        here = one.seconds(rows, nodes, context)
        assert here <= min(
            one.seconds(rows + 1, nodes, context),
            one.seconds(rows, nodes + 1, context),
            one.seconds(rows, nodes, context + 1),
        )


def test_what_nothing_hides_comes_behind_the_slower_of_traffic_and_arithmetic() -> None:
    one = replace(
        profile(0.010, slot=1e-6, node=1e-4),
        serial_seconds=0.002,
        serial_slot_seconds=2e-6,
        serial_node_seconds=3e-5,
        serial_node_slot_seconds=4e-8,
    )
    serial = 0.002 + 4 * 128 * 2e-6 + 4 * 8 * (3e-5 + 128 * 4e-8)
    assert one.seconds(2, 5, 100) == pytest.approx(0.010 + 4 * 128 * 1e-6 + serial)
    assert one.slower(3).seconds(2, 5, 100) == pytest.approx(3 * one.seconds(2, 5, 100))


def test_the_bundled_profiles_are_the_computed_pass_and_the_measured_one() -> None:
    assert profile_names() == [COMPUTED, MEASURED, *TRN2]
    computed, measured = find_profile(COMPUTED), find_profile(MEASURED)
    assert (computed.name, measured.name) == (COMPUTED, MEASURED)
    assert 1 / measured.seconds(1, 1, 0) == pytest.approx(27.24, rel=1e-3)
    assert "27.24 tokens/s" in measured.source
    assert "not yet run on hardware" in computed.source


def test_the_two_profiles_of_trn2_are_aws_published_pass_and_the_computed_one() -> None:
    """25.6 ms for one token, 26.2 for four; half of the former as computed."""
    computed, published = (find_profile(name) for name in TRN2)
    assert published.seconds(1, 1, 2048) == pytest.approx(25.6e-3, rel=0.03)
    assert published.serial_node_seconds == pytest.approx(0.2e-3, rel=0.05)
    assert computed.seconds(1, 1, 2048) < 0.5 * published.seconds(1, 1, 2048)
    assert "1.2 ms a node" in published.assumes


def test_a_profile_that_is_not_there_is_answered_with_those_that_are() -> None:
    assert_refused(lambda: find_profile("trn9"), [f"{COMPUTED}, {MEASURED}"])


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"pass_seconds": -1}, "pass_seconds"),
        ({"pass_seconds": float("nan")}, "pass_seconds"),
        ({"nodes": [8, 1]}, "ascending"),
        ({"rows": []}, "rows"),
        ({"slot_step": 0}, "slot_step"),
        ({"name": ""}, "name"),
        ({"speed": 2}, "speed"),
    ],
)
def test_a_profile_of_the_users_own_is_checked(
    change: dict[str, object], shown: str, tmp_path: Path
) -> None:
    raw = json.loads((ROOT / f"inference/data/profiles/{MEASURED}.json").read_text())
    own = tmp_path / "own.json"
    own.write_text(json.dumps(raw))
    assert find_profile(str(own)) == find_profile(MEASURED)
    own.write_text(json.dumps(raw | change))
    assert_refused(lambda: find_profile(str(own)), [shown])


def test_whatever_reports_a_time_says_emulated(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command = [sys.executable, "main.py", "--role", "target", "--port", "0", "--emulate", MEASURED]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    ready = next(line for line in process.stderr if line.startswith(READY))
    label = f"emulated: {MEASURED} (choices by outrider-embedded-target on cpu"
    assert label in ready
    flags = ["--prompt", "def f(x):", "--max_new_tokens", "4", "--baseline", "--json"]
    flags += ["--profile", str(tmp_path)]
    assert main(["--role", "draft", "--target_host", ready.split()[2], *flags]) == 0
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=30)[1]
    out, err = capsys.readouterr()
    record = json.loads(out)
    assert label in record["device"]
    assert label in record["baseline"]["device"]
    assert f"target on {label}" in err
    assert label in next(csv.DictReader((tmp_path / "outrider-profile.csv").open()))["device"]
    assert f"emulated {MEASURED}:" in said
