"""Models around a model: calls of several threads in one, and calls that take a profile's time."""

from __future__ import annotations

import csv
import json
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from inference.backends import Chosen, Ranked, Segment, wrappers
from inference.backends.wrappers import DynamicBatcher, TimedModel
from inference.times_file import Profile
from outrider.cli import main
from outrider.processes import READY
from tests.support.clock import Clock
from tests.support.models import segment
from tests.support.repository import ROOT
from tests.support.wire_fixtures import FAULTY, WAIT, Successor, eventually


class Echo(Successor):
    """Ranks each token itself first, and fails in every call with a certain token."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.batches = list[int]()  # the segments of each call

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        self.batches.append(len(segments))
        self.entered.set()
        assert self.gate.wait(WAIT)
        if any(FAULTY in segment.tokens for segment in segments):
            raise RuntimeError("a private reason")
        tokens = [segment.tokens[segment.pick][:, None].repeat(k, 1) for segment in segments]
        return [Ranked(ids, np.zeros(ids.shape, np.float32)) for ids in tokens]


@pytest.mark.parametrize("last", [60, FAULTY])
def test_calls_that_stand_in_line_are_computed_in_one_and_answered_in_their_order(
    last: int,
) -> None:
    """A fault is that of the thread whose call fails."""
    shared = DynamicBatcher(model := Echo(3))
    model.gate.clear()

    def ranked(row: int, *tokens: int) -> list[int]:
        call = [segment(row, 1)._replace(tokens=np.array([token], np.int32)) for token in tokens]
        return [found.ids.item() for found in shared.rank(call, 1)]

    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(ranked, 0, 20)
        assert model.entered.wait(WAIT)
        second, third = pool.submit(ranked, 1, 30, 40, 50), pool.submit(ranked, 2, last)
        eventually(lambda: sum(len(line) for line in shared.queue.values()) == 2)
        model.gate.set()
        assert first.result(WAIT) == [20]
        assert second.result(WAIT) == [30, 40, 50]
        if last == FAULTY:
            with pytest.raises(RuntimeError, match="private"):
                third.result(WAIT)
        else:
            assert third.result(WAIT) == [60]
    assert model.batches[:2] == [1, 4]


MEASURED = "llama-3.1-8b-trn1.2xlarge-measured"
PROFILE = Profile("test", "a test", "nothing", ((4, 1, 0.02), (4, 64, 0.256)))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(0.0)

    def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr(wrappers, "time", SimpleNamespace(perf_counter=clock, sleep=sleep))
    return clock


class Slow(Echo):
    """Takes so many seconds to choose."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        super().__init__(rows=2)
        self.clock, self.seconds = clock, seconds

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        self.clock.now += self.seconds
        return super().choose(segments)


def test_a_forward_takes_the_profiles_time_and_one_that_takes_longer_is_counted(
    clock: Clock,
) -> None:
    model = TimedModel(Slow(clock, 0.1), PROFILE)
    chosen = model.choose([segment(0, 3), segment(1, 20)])
    assert clock.now == pytest.approx(0.256)  # 2 rows run as 4, 20 nodes as 64
    assert [row.tokens.tolist() for row in chosen] == [list(range(2, 5)), list(range(2, 22))]
    assert model.rank([segment(0, 1)], 2)[0].ids.shape == (1, 2)
    assert clock.now == model.emulated_seconds == pytest.approx(0.256 + 0.02)
    assert model.overruns == 0
    for _ in range(2):
        model.choose([segment(0, 1)])
    assert (model.forwards, model.overruns) == (4, 2)
    assert model.late_seconds == pytest.approx(2 * 0.08)
    assert re.search("emulated test: 4 .*, 2 ", model.account())


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
