"""The benchmark of many users: its scripted target, its drafts, and a tiny run of every part."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.capacity import __main__ as command
from benchmarks.capacity import parts, processes, virtual
from benchmarks.capacity.client import ALONE, GROWING, ROUNDS, Came
from benchmarks.capacity.parts import Cell, rate, tenancy
from benchmarks.capacity.script import (
    ROUND_NODES,
    SKILLS,
    BoastingDraft,
    GrowingDraft,
    RoundDraft,
    ScriptedTarget,
    Text,
    WideDraft,
    next_token,
    next_tokens,
)
from benchmarks.capacity.world import Delays
from inference.decode import decode
from inference.engine.engine import Engine
from inference.engine.local_session import LocalSession
from inference.order import Decode, Pace
from inference.sampling import SamplingParams

PROMPT = [5, 6, 7]


def test_a_client_computes_the_token_that_the_target_chooses() -> None:
    seeds, positions, tokens = (np.array(column) for column in ([1, 9], [4, 700], [31_999, 0]))
    chosen = [next_token(*node) for node in zip([1, 9], [4, 700], [31_999, 0], strict=True)]
    assert next_tokens(seeds, positions, tokens).tolist() == chosen


@pytest.mark.parametrize("temperature", SKILLS)
@pytest.mark.parametrize("kind", [GrowingDraft, RoundDraft, None])
def test_a_scripted_text_is_the_targets_own_and_drafts_shorten_it(
    temperature: float, kind: type[GrowingDraft | RoundDraft] | None
) -> None:
    engine = Engine(
        ScriptedTarget(1, 300, 64), sequence_length=200, max_tree_nodes=16, vocabulary=32_000
    )
    session, params = LocalSession(engine), SamplingParams(temperature, seed=3)
    order = Decode(103, pace=Pace.WAIT if kind is RoundDraft else Pace.GO_ON)
    drafts = [kind(SKILLS[temperature], 0.0)] if kind else [WideDraft(SKILLS[temperature])]
    made = [token for one in decode(PROMPT, params, session, order, drafts) for token in one.tokens]
    text = Text(PROMPT, 3)
    assert made == [text.at(position) for position in range(3, 103)]
    assert session.traffic.forwards < 80
    if kind is RoundDraft:
        assert session.traffic.nodes <= (1 + ROUND_NODES) * session.traffic.forwards
    session.close()


@pytest.mark.parametrize(
    ("temperature", "first", "covered"), [(0.0, 0.85, 0.95), (0.8, 0.72, 0.92)]
)
def test_a_draft_is_right_as_often_as_it_is_told(
    temperature: float, first: float, covered: float
) -> None:
    draft = GrowingDraft(SKILLS[temperature], 0.0)
    draft.open(PROMPT, SamplingParams(temperature, seed=11))
    ranks = [draft.guess(position).right for position in range(3, 4003)]
    assert abs(sum(rank == 0 for rank in ranks) / 4000 - first) < 0.02
    assert abs(sum(rank is not None for rank in ranks) / 4000 - covered) < 0.02


def test_a_rate_counts_from_the_first_event_of_the_window_to_its_last() -> None:
    came = Came(1, ALONE, 0.0, [(0.5, 9), (1.0, 4), (2.0, 1), (3.0, 3), (9.0, 9)])
    assert rate(came, (1.0, 4.0)) == 2.0
    assert rate(came, (2.5, 4.0)) == 0.0


def test_a_tiny_run_of_every_part_prints_its_rows_and_finds_every_text_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(processes, "CLIENT_PROCESSES", 1)
    monkeypatch.setattr(parts, "ARRIVING_TOKENS", 26)
    monkeypatch.setattr(parts, "SETTLE_SECONDS", 0.2)
    monkeypatch.setattr(parts, "WARM_UP_SECONDS", 0.1)
    monkeypatch.setattr(command, "CELLS", (Cell("neuron", 32, 0.0, 3),))
    monkeypatch.setattr(command, "TENANCIES", (tenancy("steep"),))
    file = tmp_path / "capacity.json"
    flags = ["--slower=1", "--rounds=1", "--seconds=0.4", "--users=4", f"--json={file}"]
    assert command.main(flags) == 0
    said = capsys.readouterr().out
    assert said.count("| neuron:32:0:3 |") == 3
    assert said.count("| steep |") == 2
    assert "Every text is the target's own." in said
    assert [row["part"] for row in json.loads(file.read_text())["rows"]] == [
        *["Crowd"] * 3,
        *["Visits"] * 2,
        *["Tenancy"] * 2,
    ]


DELAYS = Delays(forward=0.0, link=0.002, work=0.001, every=0.2, pause=0.01)


@pytest.mark.parametrize("arm", [GROWING, ROUNDS])
def test_a_crowd_on_a_virtual_clock_gains_and_is_the_same_every_time(arm: str) -> None:
    cell, window = Cell("neuron", 16, 0.0, 4), virtual.Window(0.1, 0.5)
    alone, seen, again = (
        virtual.crowd(cell, name, window, 1, DELAYS, virtual.Boasters())
        for name in (ALONE, arm, arm)
    )
    assert sum(seen.rates) > 1.3 * sum(alone.rates)
    assert seen == again


def test_visitors_of_a_virtual_target_get_their_texts_sooner_with_drafts() -> None:
    alone, growing = (virtual.arrivals(arm, 0.0, 4, 0.7, 1, DELAYS) for arm in (ALONE, GROWING))
    assert growing.users == alone.users == 4
    assert growing.tpot_p50 < alone.tpot_p50


def test_a_boasting_draft_misses_more_often_than_it_says() -> None:
    honest, boasting = GrowingDraft(SKILLS[0.0], 0.0), BoastingDraft(SKILLS[0.0], 0.5)
    for one in (honest, boasting):
        one.open(PROMPT, SamplingParams(seed=11))
    both = [(honest.guess(place), boasting.guess(place)) for place in range(3, 2003)]
    assert all(one.chances == other.chances for one, other in both)
    hits, fewer = (
        sum(guess.right is not None for guess in guesses) for guesses in zip(*both, strict=True)
    )
    assert abs(fewer / hits - 0.5) < 0.05
