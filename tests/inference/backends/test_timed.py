"""An emulated target takes the time that its profile says, and calls itself emulated."""

from __future__ import annotations

import csv
import json
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from inference.backends import Chosen, Ranked, Segment, wrappers
from inference.backends.wrappers import TimedModel
from inference.times_file import Profile
from outrider.cli import main
from outrider.processes import READY
from tests.support.clock import Clock
from tests.support.models import segment
from tests.support.repository import ROOT
from tests.support.wire_fixtures import Successor

MEASURED = "llama-3.1-8b-trn1.2xlarge-measured"
PROFILE = Profile("test", "a test", "nothing", ((4, 1, 0.02), (4, 64, 0.256)))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(0.0)

    def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr(wrappers, "time", SimpleNamespace(perf_counter=clock, sleep=sleep))
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
    model = TimedModel(Slow(clock, 0.1), PROFILE)
    chosen = model.choose([segment(0, 3), segment(1, 20)])
    assert clock.now == pytest.approx(0.256)  # 2 rows run as 4, 20 nodes as 64
    assert [row.tokens.tolist() for row in chosen] == [list(range(2, 5)), list(range(2, 22))]
    assert model.rank([segment(0, 1)], 2)[0].ids.shape == (1, 2)
    assert clock.now == pytest.approx(0.256 + 0.02)
    assert model.emulated_seconds == pytest.approx(0.256 + 0.02)
    assert model.overruns == 0


def test_a_model_slower_than_the_profile_is_counted(clock: Clock) -> None:
    model = TimedModel(Slow(clock, 0.03), PROFILE)
    for _ in range(2):
        model.choose([segment(0, 1)])
    assert (model.forwards, model.overruns) == (2, 2)
    assert model.late_seconds == pytest.approx(2 * 0.01)
    assert re.search("emulated test: 2 .*, 2 ", model.account())


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
