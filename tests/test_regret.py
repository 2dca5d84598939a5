"""The regret study counts what it says it counts: a virtual clock, a pair with a dial, rivals that are what they are called."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest
import torch

from benchmarks.regret.arms import ADAPTIVE, ALONE, ARMS, Arm, Foresight, Player
from benchmarks.regret.betting import BettingDrafter
from benchmarks.regret.clock import VirtualClock
from benchmarks.regret.dial import LEVELS, Agreement, Text
from benchmarks.regret.pair import PrefixModel
from benchmarks.regret.prefixes import Prefixes
from benchmarks.regret.rivals import BudgetTree, TransferByNode, TransferByRound
from benchmarks.regret.stage import BYTE_TIME, PROFILES, Pair, Stage, virtual_stage
from benchmarks.regret.study import Cell, NotTheTargetsText, Played, Result, Study, cells, play
from benchmarks.regret.table import (
    across,
    best,
    bound_ms,
    gain_of_bets,
    markdown,
    read_others,
    record,
    regret_here,
)
from inference.decode import Superseded, decode
from inference.errors import InvalidRequest
from inference.local import LocalVerifier
from inference.planner import Round, exchange, synchronous_time
from inference.sampling import SamplingParams
from inference.tree import TokenTree
from tests import pairs

TOKENS = 32
PROMPT = tuple(range(3, 23))
NAMED = {arm.name: arm for arm in ARMS}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def studies() -> dict[float, Study]:
    """By temperature; each remembers what was asked in tests before."""
    return {
        temperature: Study(lambda: Prefixes(pairs.decoder(1)), lambda text: PROMPT, ("",), TOKENS)
        for temperature in (0.0, 0.8)
    }


def pair_of(studies: dict[float, Study], level: str, temperature: float) -> Pair:
    return studies[temperature].pair(Cell(0, level, temperature))


def test_virtual_time_passes_only_when_told_and_never_goes_back() -> None:
    clock = VirtualClock()
    clock.advance(2.0)
    clock.wait_until(1.5)
    assert clock.now() == 2.0
    clock.wait_until(3.0)
    assert clock.now() == 3.0
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1e-9)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_remembered_target_says_what_the_target_says(
    studies: dict[float, Study], temperature: float
) -> None:
    text = pair_of(studies, "mid", temperature).texts[0]
    verifier = LocalVerifier(pairs.engine(pairs.decoder(1)))
    verifier.open(text.prompt, text.params).result()
    assert tuple(verifier.generate(TOKENS, frozenset())) == text.tokens


def test_what_is_remembered_does_not_depend_on_what_was_asked_before() -> None:
    prefixes, chain = Prefixes(pairs.decoder(1)), [5, 6, 7, 8]
    whole = prefixes.logits([prefixes.after(chain)])
    other = Prefixes(pairs.decoder(1))
    for length in (1, 3, 2):
        other.logits([other.after([9, *chain[:length]]), other.after(chain[:length])])
    assert torch.allclose(other.logits([other.after(chain)]), whole, atol=1e-4)
    assert other.key(other.after(chain)) == prefixes.key(prefixes.after(chain))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_more_noise_is_less_agreement(studies: dict[float, Study], temperature: float) -> None:
    weak, mid, close = (pair_of(studies, level.name, temperature).agreement for level in LEVELS)
    assert weak.distance > mid.distance > close.distance > 0
    assert weak.first < close.first < 1
    assert weak.miss >= mid.miss >= close.miss


def test_a_draft_without_noise_is_the_target() -> None:
    prefixes, params = Prefixes(pairs.decoder(1)), SamplingParams(0.8, seed=5)
    prefix = [prefixes.after(PROMPT)]
    assert torch.equal(PrefixModel(prefixes, 0.0).logits(prefix), prefixes.logits(prefix))
    assert (
        PrefixModel(prefixes, 0.0).guesses(prefix, params, 3).ids[0, 0]
        == PrefixModel(prefixes, 0.0).guesses(prefix, params, 1).ids[0, 0]
    )


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", NAMED)
def test_every_arm_makes_the_targets_own_text(
    studies: dict[float, Study], name: str, temperature: float
) -> None:
    pair = pair_of(studies, "weak", temperature)
    result = play(NAMED[name], virtual_stage(pair, 0.04), pair.texts)
    assert result.seconds > 0
    assert result.rounds <= TOKENS


def test_an_arm_that_makes_another_text_ends_the_study(studies: dict[float, Study]) -> None:
    def lie(text: Text) -> Iterator[Sequence[int]]:
        yield [*text.tokens[:-1], text.tokens[-1] + 1]

    pair = pair_of(studies, "mid", 0.0)
    with pytest.raises(NotTheTargetsText, match=f"the first {TOKENS - 1} are the same"):
        play(Arm("liar", "none", lambda stage: Player(lie)), virtual_stage(pair, 0.0), pair.texts)


@pytest.mark.parametrize("round_trip", [0.0, 0.08, 0.3])
def test_a_fixed_chain_takes_what_the_closed_form_says(
    studies: dict[float, Study], round_trip: float
) -> None:
    pair = pair_of(studies, "mid", 0.8)
    result = play(NAMED["chain 4"], virtual_stage(pair, round_trip), pair.texts)
    made = Round(
        result.drafted / result.rounds, PROFILES.target.seconds(1, 5, 256), result.round_tokens
    )
    bytes_up, bytes_down = 40, 20  # within a dozen bytes, of 0.16 microseconds each
    expected = synchronous_time(made, exchange(round_trip, bytes_up, bytes_down, BYTE_TIME))
    assert result.token_ms == pytest.approx(1e3 * expected, rel=2e-4)
    assert made.drafting == pytest.approx(
        4 * PROFILES.here.seconds(1, 1, 64), rel=0.1
    )  # the last chains are shorter


@pytest.mark.parametrize(
    "name", [arm.name for arm in ARMS if arm.blind and arm.group in ("chain", "tree")][::4]
)
def test_a_blind_arms_rounds_are_the_same_over_any_link(
    studies: dict[float, Study], name: str
) -> None:
    pair = pair_of(studies, "mid", 0.8)
    near, far = (play(NAMED[name], virtual_stage(pair, trip), pair.texts) for trip in (0.0, 0.16))
    assert near.over(0.16).seconds == pytest.approx(far.seconds)
    assert near.rounds == far.rounds


@pytest.mark.parametrize("round_trip", [0.0, 0.3])
def test_the_target_alone_streams_at_its_own_pace_over_any_link(
    studies: dict[float, Study], round_trip: float
) -> None:
    pair = pair_of(studies, "mid", 0.0)
    result = play(ALONE, virtual_stage(pair, round_trip), pair.texts)
    assert result.token_ms == pytest.approx(1e3 * PROFILES.target.seconds(1, 1, 256))


def test_rounds_sent_ahead_arrive_one_pass_apart_and_die_with_a_wrong_assumption(
    studies: dict[float, Study],
) -> None:
    pair = pair_of(studies, "mid", 0.0)
    text, one_pass = pair.texts[0], PROFILES.target.seconds(1, 1, 256)
    stage = virtual_stage(pair, 0.2)
    with closing(stage.verifier) as verifier:
        verifier.open(text.prompt, text.params).result()
        began, roots = stage.now(), [text.prompt[-1], *text.tokens]
        first, second = (
            verifier.submit(TokenTree.chain([roots[index]]), [roots[index]] if index else None)
            for index in range(2)
        )
        dead = verifier.submit(TokenTree.chain([7]), [roots[2] + 1])
        assert first.result().next_token == text.tokens[0]
        assert stage.now() - began == pytest.approx(0.2 + one_pass, abs=1e-4)
        assert verifier.traffic.model_seconds == pytest.approx(one_pass)
        assert not second.done()
        assert second.result().next_token == text.tokens[1]
        assert stage.now() - began == pytest.approx(0.2 + 2 * one_pass, abs=1e-4)
        assert verifier.traffic.queue_seconds == pytest.approx(one_pass, abs=1e-4)
        with pytest.raises(Superseded):
            dead.result()
        assert verifier.submit(TokenTree.chain([roots[2]])).result().next_token == text.tokens[2]


class Waiting(BettingDrafter):
    """The same without its bet."""

    def ahead(self) -> bool:
        return False


def play_betting(
    kind: type[BettingDrafter], pair: Pair, round_trip: float
) -> tuple[Result, Stage, BettingDrafter]:
    stage = virtual_stage(pair, round_trip)
    drafter = kind(stage.draft, BudgetTree(nodes=4, depth=3))

    def rounds(text: Text) -> Iterator[Sequence[int]]:
        for step in decode(text.prompt, text.params, drafter, stage.verifier, len(text.tokens)):
            yield step.tokens

    return (
        play(Arm("bet", "none", lambda stage: Player(rounds, drafter.bets)), stage, pair.texts),
        stage,
        drafter,
    )


def test_a_bet_that_hits_saves_drafting_and_one_that_does_not_costs_nothing_else(
    studies: dict[float, Study],
) -> None:
    pair = pair_of(studies, "close", 0.8)
    bet, _, drafter = play_betting(BettingDrafter, pair, 0.2)
    waited, _, idle = play_betting(Waiting, pair, 0.2)
    assert 0 < drafter.bets.hits < drafter.bets.rounds
    assert 0 < drafter.bets.used < drafter.bets.prepared
    assert idle.bets.hits == idle.bets.calls == 0
    assert bet.seconds < waited.seconds
    longest = 3 * PROFILES.here.seconds(1, 4, 128)  # drafting of a round
    saved = (
        waited.seconds
        - bet.seconds
        - (waited.rounds - bet.rounds) * (0.2 + PROFILES.target.seconds(1, 5, 256))
    )
    assert saved <= (drafter.bets.hits + abs(waited.rounds - bet.rounds)) * longest


def test_a_transfer_counted_by_the_node_mistakes_a_round_trip_for_many_small_costs() -> None:
    by_node, by_round = TransferByNode(), TransferByRound()
    for transfer in (by_node, by_round):
        transfer.observe(0.08, 40)
    assert by_node.seconds(10) == pytest.approx(0.02)
    assert by_round.seconds(10) == pytest.approx(0.08)


def test_the_gain_of_bets_is_measured_and_predicted_by_hand() -> None:
    """10 rounds of 4 tokens: 40 ms of drafting and 100 ms away each; with every second round hit, (0.5 * 100 + 0.5 * 140) / 4 = 30 ms."""
    waiting = Result(
        seconds=1.4, tokens=40, rounds=10, drafted=0.4, foresight=Foresight(0.038, 0.033)
    )
    betting = Result(seconds=1.24, tokens=40, rounds=10, drafted=0.9, hits=5, bet_rounds=10)
    gain = gain_of_bets(waiting, betting)
    assert gain.measured == pytest.approx(4.0)
    assert gain.predicted == pytest.approx(5.0)
    assert gain.were_hits_whole == pytest.approx(5.0)
    assert gain.share == pytest.approx(0.8)


def test_a_table_says_what_was_played_and_others_results_can_be_kept() -> None:
    """Every arm takes 10 ms more than the one before; ours are last, so the best other arm is the first one, of 10 ms."""
    results = {
        arm.name: Result(
            float(place), 100, 20, 0.1, foresight=Foresight(0.03, 0.02) if arm.ours else None
        )
        for place, arm in enumerate(ARMS, start=1)
    }
    played = Played(Cell(80, "mid", 0.8), Agreement(0.75, 0.95, 0.2), results)
    assert best(played, across()) == ARMS[0].name
    assert regret_here(played) == pytest.approx(
        10 * (1 + list(results).index(ADAPTIVE.name)) / 10 - 1
    )
    assert bound_ms(played) == pytest.approx(0.05 * (80 + 1e3 * PROFILES.target.seconds(1, 1, 256)))
    said = json.loads(json.dumps(record([played])))
    assert said[0]["best_across"] == ARMS[0].name
    kept = read_others(said)[played.cell]
    assert kept.agreement == played.agreement
    assert kept.results == {arm.name: results[arm.name] for arm in ARMS if not arm.ours}
    assert "| 80 | 10.0 (chain 1) |" in markdown([played])


def test_results_of_other_texts_are_not_kept(studies: dict[float, Study]) -> None:
    cell = Cell(0, "mid", 0.0)
    with pytest.raises(InvalidRequest, match="other texts"):
        list(studies[0.0].play([cell], ARMS, {cell: Played(cell, Agreement(0.75, 0.95, 0.2), {})}))


def test_cells_are_named_by_patterns() -> None:
    assert len(cells()) == 42
    assert [str(cell) for cell in cells(["80:mid:*"])] == ["80:mid:0", "80:mid:0.8"]
    assert cells(["81:*:*"]) == []
