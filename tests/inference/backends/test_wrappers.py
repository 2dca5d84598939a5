"""Models around a model: calls of several threads in one, and calls that take a profile's time."""

from __future__ import annotations

import csv
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from inference.backends import Chosen, Model, Ranked, Segment, wrappers
from inference.backends.eager import EagerModel
from inference.backends.sequence import ModelSequence
from inference.backends.wrappers import DynamicBatcher, TimedModel
from inference.sampling import SamplingParams
from inference.times_file import Profile
from inference.tree.token_tree import TokenTree
from outrider.cli import main
from outrider.processes import READY
from tests.support.clock import Clock
from tests.support.models import segment, sequence_after, tiny_decoder
from tests.support.repository import ROOT
from tests.support.wire_fixtures import FAULTY, WAIT, Successor, eventually

ROWS = 4


class Gated(EagerModel):
    """Counts the rows of its calls, and holds the first one until the gate opens."""

    def __init__(self) -> None:
        super().__init__(tiny_decoder(), rows=ROWS, capacity=200, max_nodes=16)
        self.gate, self.calls = threading.Event(), list[int]()

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        self.calls.append(len(segments))
        assert self.gate.wait(WAIT)
        return super().rank(segments, k)


def seeded(model: Model, row: int, tokens: Sequence[int] = ()) -> ModelSequence:
    return sequence_after(model, tokens, row, SamplingParams(0.7, seed=row))


def ranked(model: Model, row: int) -> Ranked:
    return seeded(model, row, [5 + row, 7, 9]).rank(TokenTree.chain([11 + row]), [0], 4)


def test_what_stands_in_line_is_computed_in_one_call_and_answered_as_if_alone() -> None:
    model, alone = Gated(), EagerModel(tiny_decoder(), rows=ROWS, capacity=200, max_nodes=16)
    shared = DynamicBatcher(model)
    with ThreadPoolExecutor(ROWS) as pool:
        first = pool.submit(ranked, shared, 0)
        eventually(lambda: model.calls == [1])
        # The others' prompts have to wait for the first call as well, so only their ranking is left
        # to the threads.
        waiting = [seeded(shared, row) for row in range(1, ROWS)]
        others = [
            pool.submit(one.rank, TokenTree.chain([11 + row]), [0], 4)
            for row, one in enumerate(waiting, start=1)
        ]
        eventually(lambda: sum(len(line) for line in shared.queue.values()) == ROWS - 1)
        model.gate.set()
        for row, one in enumerate(others, start=1):
            expected = seeded(alone, row).rank(TokenTree.chain([11 + row]), [0], 4)
            assert one.result(WAIT).ids.tolist() == expected.ids.tolist()
            assert np.allclose(one.result(WAIT).scores, expected.scores, atol=1e-5)
        assert len(first.result(WAIT).ids) == 1
    assert model.calls == [1, ROWS - 1]


class Faulty(Successor):
    """Fails in every call with a certain token."""

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        self.entered.set()
        assert self.gate.wait(WAIT)
        if any(FAULTY in segment.tokens for segment in segments):
            raise RuntimeError("a private reason")
        return [
            Ranked(
                np.repeat(segment.tokens[segment.pick][:, None], k, 1),
                np.zeros((len(segment.pick), k), np.float32),
            )
            for segment in segments
        ]


def test_a_fault_is_that_of_the_thread_whose_call_fails() -> None:
    model = Faulty(3)
    shared = DynamicBatcher(model)
    model.gate.clear()
    with ThreadPoolExecutor(3) as pool:
        tokens = (10, FAULTY, 12)
        asked = [
            pool.submit(
                ModelSequence(shared, row, SamplingParams()).rank, TokenTree.chain([token]), [0], 1
            )
            for row, token in enumerate(tokens)
        ]
        eventually(lambda: model.entered.is_set())
        model.gate.set()
        assert asked[0].result(WAIT).ids[0, 0] == 10
        assert asked[2].result(WAIT).ids[0, 0] == 12
        with pytest.raises(RuntimeError, match="private"):
            asked[1].result(WAIT)


def test_a_call_of_several_rows_gets_all_its_answers_in_order() -> None:
    def one_token(token: int, row: int) -> Segment:
        ids, true = np.array([token], np.int32), np.ones((1, 1), np.bool_)
        zero = np.zeros(1, np.int32)
        return Segment(row, ids, zero, zero, true, true, zero, SamplingParams())

    model = Faulty(3)
    shared = DynamicBatcher(model)
    model.gate.clear()
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(shared.rank, [one_token(20, 0)], 1)
        assert model.entered.wait(WAIT)
        second = pool.submit(shared.rank, [one_token(token, 1) for token in (30, 40, 50)], 1)
        third = pool.submit(shared.rank, [one_token(60, 2)], 1)
        eventually(lambda: sum(len(line) for line in shared.queue.values()) == 2)
        model.gate.set()
        found = [[one.ids.item() for one in part.result(WAIT)] for part in (first, second, third)]
    assert found == [[20], [30, 40, 50], [60]]


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
