"""What is said of decisions: in the user's units, on lines of its own, and no more often than something new is to be seen."""

from __future__ import annotations

import pytest

from inference.acceptance import read_acceptance
from inference.cost import Rates
from inference.forecast import DISTRIBUTED, FUSED, TARGET_ONLY, Forecast
from inference.navigator import Course, Navigator
from inference.objective import SPEED, Effort, Terms, Wish, price_words
from inference.pilot import Knowledge
from inference.times import DraftTimes, LinkTimes, TargetTimes
from outrider.adaptive import Aims, Teller
from outrider.completion import Completion

TERMS = Terms(Rates(3.6), target_watts=100.0, draft_watts=10.0)
ALONE, SPLIT, THERE = Forecast(TARGET_ONLY, 0, 0, 0, 1.0, Effort(0.04)), Forecast(DISTRIBUTED, 6, 3, 2, 2.5, Effort(0.02)), Forecast(
    FUSED, 4, 2, 0, 2.0, Effort(0.03)
)  # fmt: skip


def aims(objective: str = "api_cost", terms: Terms | None = TERMS, *, explain: bool = True) -> Aims:
    return Aims(Wish(objective), terms, auto=True, bets=True, explain=explain)


def course(
    taken: Forecast = SPLIT,
    alternatives: tuple[Forecast, ...] = (ALONE, SPLIT, THERE),
    notice: str | None = None,
) -> Course:
    return Course(taken, SPEED, alternatives, notice)


def so_far(text: str = "") -> Completion:
    """21 tokens after the first two, in half a second."""
    done = Completion(0, "p", 0, 3, text=text, token_ids=list(range(23)), seconds=1.5)
    done.arrivals, done.chunk_tokens = [1.0, 1.2, 1.5], [2, 10, 11]
    return done


def heard(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("objective", "price", "words"),
    [
        ("total_cost", 12.5e-6, "$12.5 a million tokens"),
        ("api_cost", 1e-9, "$0.001 a million tokens"),
        ("energy_total", 2.0, "2 J a token"),
        ("draft_energy", 0.125, "0.125 J a token"),
        ("latency", 0.02, "20 ms a token"),
    ],
)
def test_prices_of_tokens_have_the_unit_of_what_is_weighed(
    objective: str, price: float, words: str
) -> None:
    assert price_words(objective, price) == words


def test_a_decision_is_told_with_its_alternatives_best_first_and_what_was_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Teller(aims()).tell(course(), so_far(), streamed=True)
    assert heard(capsys) == [
        "plan: distributed, 6 nodes of depth 3, 2 bets: 50.0 tokens/s, $20 a million tokens predicted; measured so far 42.0 tokens/s",
        "  * distributed, 6 nodes of depth 3, 2 bets    50.0 tokens/s, $20 a million tokens",
        "    fused, 4 nodes of depth 2                  33.3 tokens/s, $30 a million tokens",
        "    target-only                                25.0 tokens/s, $40 a million tokens",
    ]


def test_the_table_comes_again_only_with_another_choice_or_order(
    capsys: pytest.CaptureFixture[str],
) -> None:
    teller = Teller(aims(terms=None))
    better = SPLIT._replace(nodes=9, effort=Effort(0.01))
    sizes = []
    for told in (
        course(),
        course(),
        course(better, (ALONE, better, THERE)),
        course(THERE),
        course(THERE, (ALONE, SPLIT, THERE._replace(depth=9))),
    ):
        teller.tell(told)
        sizes.append(sum(line.startswith("  ") for line in heard(capsys)))
    assert sizes == [3, 0, 0, 3, 0]
    teller.tell(course(THERE, (ALONE._replace(effort=Effort(0.001)), SPLIT, THERE)))
    assert heard(capsys)[1].split() == ["target-only", "1000.0", "tokens/s"]


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        ("energy_total", "2 J a token"),
        ("latency", "20 ms a token"),
        ("total_cost", "50.0 tokens/s predicted"),
    ],
)
def test_a_plan_has_the_unit_of_its_objective_and_none_where_that_is_not_known(
    capsys: pytest.CaptureFixture[str], objective: str, words: str
) -> None:
    Teller(aims(objective)).tell(course())
    assert words in heard(capsys)[0]


def test_in_the_middle_of_a_streamed_line_a_new_one_is_begun(
    capsys: pytest.CaptureFixture[str],
) -> None:
    teller = Teller(aims())
    first = []
    for text in ("", '"""Return', '"""Return', '"""Return a\n', '"""Return a\n  b'):
        teller.tell(course(), so_far(text), streamed=True)
        first.append(heard(capsys)[0])
    assert [line == "" for line in first] == [False, True, False, False, True]
    teller.tell(course(), so_far("nobody sees this"))
    assert heard(capsys)[0].startswith("prompt 0, plan: distributed")


def test_without_explain_only_what_is_new_is_said_and_on_its_own_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    teller = Teller(aims(explain=False))
    for told in (
        course(),
        course(THERE, notice="too dear"),
        course(THERE, notice="too dear"),
        course(ALONE),
        course(THERE),
    ):
        teller.tell(told, so_far("x"), streamed=True)
    drafting = "goes on from here: drafting on this machine does not pay now"
    assert heard(capsys) == [
        "",
        "note: too dear",
        f"note: fused {drafting}",
        f"note: target-only {drafting}",
    ]


def blind(wish: Wish) -> Navigator:
    """At a target that has not told its times."""
    known = Knowledge(
        DraftTimes({1: 0.01, 32: 0.02}), TargetTimes(), LinkTimes(), read_acceptance()
    )
    known.link.observe(0.02, 0.0, 100)
    return Navigator(known, wish, TERMS, frozenset([DISTRIBUTED, TARGET_ONLY]), most_nodes=31)


def test_a_target_that_has_not_told_its_times_has_no_predicted_speed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    navigator = blind(Wish())
    Teller(aims()).tell(navigator.course)
    plan, *table = heard(capsys)
    assert plan.endswith(": unknown until the target's times are seen")
    assert table
    assert all(line.endswith("unknown") for line in table)
    assert "inf" not in "".join([plan, *table])


@pytest.mark.parametrize(
    "wish",
    [Wish("api_cost", min_tps=1e6), Wish("api_cost", max_per_token=1e-12)],
    ids=["speed", "cost"],
)
def test_no_limit_is_called_impossible_before_the_targets_times_are_seen(wish: Wish) -> None:
    navigator = blind(wish)
    assert navigator.course.notice is None
    for _ in range(3):
        navigator.known.target.observe(1, 1, 0.04)
    assert navigator.decide().notice is not None


def test_a_limit_that_cannot_be_had_is_told_in_the_unit_that_the_user_gave() -> None:
    navigator = blind(Wish("api_cost", max_per_token=0.5e-6))
    navigator.known.target.observe(1, 1, 0.04)
    notice = navigator.decide().notice
    assert notice is not None
    assert notice.startswith("$0.5 a million tokens cannot be had: the least is $")
    assert " a million tokens (" in notice
