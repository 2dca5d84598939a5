"""The regret study on real models: the embedded pair on two cores over a shaped link, and what
is counted of a text.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.regret import models
from benchmarks.regret.arms import ALONE, ARMS, GROWING, Player
from benchmarks.regret.dial import Agreement, Text
from benchmarks.regret.models import (
    Asked,
    KeptTexts,
    ModelStudy,
    agreement,
    alone,
    ask,
    chosen_arms,
)
from benchmarks.regret.models_report import PlayedTruly, geometric_interval, markdown, record, write
from benchmarks.regret.stage import CallTimes, Drafting, Stage, serve
from benchmarks.regret.study import Cell, Reading, Result, read
from benchmarks.regret.two_cores import Bench, Chosen, bench, busy
from inference.backends.eager import EagerModel
from inference.engine.local_session import LocalSession
from inference.errors import InvalidRequest
from inference.sampling import SamplingParams
from outrider.models.loading import EMBEDDED
from tests.support import pairs
from tests.support.wire_fixtures import eventually

FEW = {
    *("target-only", "growing", "anywhere", "fused", "chain 2", "tree 8x3"),
    *("one bet (SpecEdge)", "AutoDraft, round trip known"),
}
"""One of each kind."""

TOKENS = 12
CELL = Cell(5, models.LEVEL, 0.8)
TEXT = Text((1, 2), SamplingParams(), (5, 6, 7, 8))
CORES = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()

needs_two_cores = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores, on Linux")


class Scripted:
    """A clock, and an arm that makes these tokens at these moments."""

    def __init__(self, rounds: Sequence[tuple[float, Sequence[int]]]) -> None:
        self.now, self._rounds = 0.0, rounds

    def play(self, text: Text) -> Iterator[Sequence[int]]:
        for moment, tokens in self._rounds:
            self.now = moment
            yield tokens


def local_stage(arm: Scripted | None = None) -> Stage:
    """A target in this process, and a draft that is the same model."""
    decoder = pairs.decoder(1)
    target, draft = (
        EagerModel(decoder, rows=1, capacity=pairs.SEQUENCE_LENGTH, max_nodes=64) for _ in range(2)
    )
    clock = arm or Scripted([])
    return Stage(
        now=lambda: clock.now,
        draft=draft,
        drafting=lambda: Drafting(clock.now / 2, 0),
        session=LocalSession(serve(target, pairs.VOCABULARY)),
        round_trips=[],
        times=CallTimes({}, {}, {}),
    )


def test_a_text_counts_from_its_first_rounds_tokens_on() -> None:
    arm = Scripted([(1.0, [5]), (1.0005, [6]), (2.0, [7]), (4.0, [8])])
    made = read(Player(arm.play), local_stage(arm), TEXT)
    assert (made.seconds, made.tokens, made.rounds, made.length) == (3.0, 2, 2, 4)
    assert made.drafted == pytest.approx((4.0 - 1.0005) / 2)
    assert made.differs_at is None


def test_a_text_that_is_not_the_targets_own_is_counted_with_its_time() -> None:
    arm = Scripted([(1.0, [5, 6]), (2.0, [9, 8])])
    made = read(Player(arm.play), local_stage(arm), TEXT)
    assert (made.seconds, made.tokens, made.differs_at) == (1.0, 2, 2)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_draft_that_is_the_target_foresees_every_token(temperature: float) -> None:
    stage, params = local_stage(), SamplingParams(temperature, seed=3).on_the_wire()
    prompt = tuple(range(3, 23))
    said = agreement(stage.draft, [Text(prompt, params, alone(stage, prompt, params, 40))])
    assert (said.first, said.covered) == (1.0, 1.0)


def test_target_only_is_always_among_the_arms() -> None:
    assert chosen_arms("growing") == [ALONE, GROWING]
    assert chosen_arms("target-only,growing") == [ALONE, GROWING]


def test_an_unknown_arm_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no arm 'shrinking'"):
        chosen_arms("shrinking")


def made(seconds: float, tokens: int) -> Reading:
    """A text of so many tokens after its first round."""
    return Reading(seconds, tokens, tokens, tokens + 1, None, seconds, *[0] * 9)


def test_speeds_are_told_apart_by_kind_and_go_by_the_token() -> None:
    results = {
        ALONE.name: Result((made(4.0, 8), made(4.0, 8), made(1.0, 4))),
        GROWING.name: Result((made(2.0, 8), made(3.0, 6), made(0.0, 0))),
    }
    played = PlayedTruly(CELL, Agreement(1, 1), results, ("code", "chat", "chat"), (0.0, 0.0))
    assert played.speeds(GROWING.name) == {"code": [2.0], "chat": [1.0]}


def test_all_compared_arms_exist() -> None:
    assert len(models.COMPARED) == 13
    assert {arm.name for arm in models.COMPARED} >= FEW


@pytest.fixture(scope="module")
def embedded() -> Iterator[Bench]:
    with bench(Chosen(str(EMBEDDED / "target"), str(EMBEDDED / "draft"), "float32")) as ready:
        yield ready
    assert os.sched_getaffinity(0) == CORES


@pytest.fixture(scope="module")
def played(embedded: Bench) -> PlayedTruly:
    arms = [arm for arm in ARMS if arm.name in FEW]
    asked = ask(embedded.tokenizer, None, 2)[1:]
    return next(ModelStudy(embedded, arms, asked, TOKENS, KeptTexts(None)).play([CELL]))


@needs_two_cores
def test_every_arm_makes_the_targets_own_text_across_a_real_link(played: PlayedTruly) -> None:
    assert played.results.keys() == FEW
    lengths = [one.length for made in played.results.values() for one in made.readings]
    assert lengths == [TOKENS] * len(FEW)
    assert played.differing == {}


@needs_two_cores
def test_a_fixed_chain_waits_for_the_link_in_every_round(played: PlayedTruly) -> None:
    chain = played.results["chain 2"]
    assert chain.total("seconds") > 0.005 * chain.total("rounds")
    assert 0 < chain.total("drafted") < chain.total("seconds")
    assert chain.total("tokens") <= 3 * chain.total("rounds")


@needs_two_cores
def test_draft_and_target_have_a_core_each(embedded: Bench) -> None:
    assert len(os.sched_getaffinity(0)) == 1
    assert embedded.times.target
    assert embedded.times.here
    assert embedded.times.beside
    ours, theirs = sorted(CORES)[:2]
    assert f"on core {theirs}, with draft beside it; draft draft on core {ours}" in embedded.words


@needs_two_cores
def test_what_was_played_is_told_and_written(
    embedded: Bench, played: PlayedTruly, tmp_path: Path
) -> None:
    figures, shown = record(embedded, [played]), markdown(embedded, [played])
    write(tmp_path, figures, shown)
    said = json.loads((tmp_path / "models.json").read_text())
    told = (tmp_path / "models.md").read_text()
    assert f"| 0 of {len(FEW)} |" in told
    assert "| 5:0.8 | python | growing | 1 |" in told
    assert said["models"]["dtype"] == "float32"
    assert said["cells"][0]["arms"].keys() == FEW
    assert said["columns"][0] == "seconds"


def test_kept_texts_serve_the_next_run(tmp_path: Path) -> None:
    KeptTexts(tmp_path / "texts.json").add("one", (3, 4))
    again = KeptTexts(tmp_path / "texts.json")
    assert again.get("one") == (3, 4)
    assert again.get("two") is None


def test_the_interval_of_a_geometric_mean_holds_it() -> None:
    low, high = geometric_interval([1.0, 2.0, 4.0, 8.0])
    assert 1.0 < low < 8**0.5 < high < 8.0
    assert geometric_interval([3.0]) == pytest.approx((3.0, 3.0))


@needs_two_cores
def test_texts_of_one_round_are_too_short_for_the_study(embedded: Bench) -> None:
    study = ModelStudy(embedded, [ALONE], [Asked("python", (1, 2, 3))], 1, KeptTexts(None))
    with pytest.raises(InvalidRequest, match="one round"):
        next(study.play([CELL]))


def busy_children() -> list[str]:
    """Processes of this one that compute without end."""
    children = Path("/proc/self/task", str(os.getpid()), "children").read_text().split()
    return [pid for pid in children if b"while True" in Path("/proc", pid, "cmdline").read_bytes()]


@needs_two_cores
def test_busy_processes_end_with_their_context() -> None:
    with busy(1) as said:
        eventually(lambda: len(busy_children()) == 1)  # it takes a moment to be another program
    assert said.startswith("Foreign busy processes beside: 1.")
    assert not busy_children()
