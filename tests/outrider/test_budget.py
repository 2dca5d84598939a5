"""Texts of one run are charged to one budget: the target's seconds once, whoever uses them, and
nothing that the user did not order.
"""

from __future__ import annotations

import re
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from inference.cost.billing import Billing
from inference.errors import InvalidRequest
from inference.planner.prices import Usage
from inference.text_log import Traffic
from outrider.money import RunBudget
from outrider.options.roles import TargetRole
from tests.support.clock import Clock
from tests.support.commands import Run

DOLLAR_A_SECOND = Billing(3600.0)


@pytest.fixture
def clock() -> Clock:
    return Clock(0.0)


def test_the_targets_seconds_are_paid_once_by_the_texts_that_use_them_until_the_limit(
    clock: Clock,
) -> None:
    budget = RunBudget(DOLLAR_A_SECOND, 7.0, clock)
    with budget.charge() as alone:
        clock.now = 1.0
        assert (alone.usd, budget.spent) == (1.0, 1.0)
    clock.now = 3.0  # between texts
    with suppress(InvalidRequest), budget.charge():
        clock.now = 4.0
        raise InvalidRequest("a text that fails")
    with ExitStack() as stack:
        first, second = (stack.enter_context(budget.charge()) for _ in range(2))
        clock.now = 8.0
        second.close()
        clock.now = 8.9
        assert not budget.empty
        clock.now = 9.0
        assert budget.empty
    assert (first.usd, second.usd, budget.spent) == (3.0, 2.0, 7.0)


def test_drafting_and_bytes_of_all_texts_add_up(clock: Clock) -> None:
    budget = RunBudget(Billing(0.0, 3.6, 1.0, draft_watts=10.0), clock=clock)
    for _ in range(2):
        with budget.charge() as charge:
            charge.take(1.0, Traffic(bytes_up=500, bytes_down=50))
            charge.take(2.0, Traffic(bytes_up=1000, bytes_down=100))
    assert budget.usage == Usage(0.0, 4.0, 2000, 200)
    assert budget.spent == pytest.approx(4.0 * 10.0 * 1e-6 + 2200e-9)
    assert charge.usd == pytest.approx(budget.spent / 2)


@pytest.mark.parametrize(("billing", "usd"), [(DOLLAR_A_SECOND, 1e9), (Billing(), None)])
def test_without_a_limit_it_is_never_empty_and_without_a_price_nothing_has_one(
    clock: Clock, billing: Billing, usd: float | None
) -> None:
    budget = RunBudget(billing, clock=clock)
    with budget.charge() as charge:
        clock.now = 1e9
    assert not budget.empty
    assert (charge.usd, budget.spent) == (usd, usd or 0.0)


SERVED = TargetRole(port=0, batch=2, max_tree_nodes=16, sequence_length=128)
TEXT = [*("--max_new_tokens", "60", "--temperature", "0", "--json"), *("--usd_per_hour", "3600")]
BY_THE_BYTE = [
    "--usd_per_hour", "0.001", "--usd_per_gb", "1e6", "--usd_per_kwh", "0", "--draft_watts", "0",
]  # fmt: skip
"""A thousandth of a dollar for a byte; a token takes some 20 of them from the target alone."""

COST = re.compile(r"^cost \$([0-9.]+),", re.MULTILINE)


@pytest.mark.parametrize("trees", [[], ["--gamma", "3"]], ids=["growing", "chain"])
def test_a_run_that_has_spent_its_money_ends_with_what_was_made_and_begins_no_text(
    run: Run, port: str, tmp_path: Path, trees: list[str]
) -> None:
    (tmp_path / "prompts.txt").write_text("def read_lines(path):\nclass Queue:\nimport os\n")
    flags = ["--port", port, "--prompt_text", tmp_path / "prompts.txt", "--batch", "1", *trees]
    ended = run("run", *TEXT, *flags, *BY_THE_BYTE, "--max_usd", "1.2")
    first, *others = ended.records
    whole = run("run", *TEXT, *flags, *BY_THE_BYTE, "--max_usd", "1000").records
    assert "stopped by --max_usd: 3 of 3 texts, 2 of them before they started" in ended.err
    assert first["finish_reason"] == "spent"
    assert 0 < len(first["token_ids"]) < 60
    assert first["token_ids"] == whole[0]["token_ids"][: len(first["token_ids"])]
    for done in others:
        facts = [done[name] for name in ("finish_reason", "token_ids", "text", "usd", "bytes_up")]
        assert facts == ["spent", [], "", 0.0, 0]
    assert [done["finish_reason"] for done in whole] == ["length"] * 3


def test_texts_made_at_the_same_time_cost_what_the_run_costs(
    run: Run, port: str, tmp_path: Path
) -> None:
    (tmp_path / "prompts.txt").write_text("def read_lines(path):\nclass Queue:\n")
    flags = ["--port", port, "--prompt_text", tmp_path / "prompts.txt", "--batch", "2"]
    ended = run("run", *TEXT, *flags)
    (told,), (wall,) = COST.findall(ended.err), re.findall(r"(?m)^time ([0-9.]+) s", ended.err)
    assert float(told) == pytest.approx(sum(done["usd"] for done in ended.records), abs=1e-5)
    assert float(told) <= float(wall) + 0.01  # a dollar a second; the wall is rounded


def test_a_target_only_run_for_comparison_costs_nothing_and_is_as_long_as_the_text(
    run: Run, port: str
) -> None:
    flags = ["--port", port, "--baseline", *BY_THE_BYTE, "--max_usd", "0.6"]
    ended = run("run", "def read_lines(path):", *TEXT, *flags)
    (cut,), (told,) = ended.records, COST.findall(ended.err)
    assert cut["finish_reason"] == "spent"
    assert cut["baseline"]["token_ids"] == cut["token_ids"]
    assert cut["baseline"]["usd"] is None
    assert "identical texts: 1 of 1, 1 of them up to where they stopped" in ended.err
    assert float(told) == pytest.approx(cut["usd"], abs=1e-6)
