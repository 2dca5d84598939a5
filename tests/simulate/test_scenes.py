"""Plans that name what happens: each is drawn by some seeds, and here on purpose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inference.order import Pace
from tests.simulate.plan import LONG_PATIENCE, UNRULED, ClientPlan, Fault, Plan, TextPlan
from tests.simulate.target_process import KINDS
from tests.simulate.world import run

TEXT = TextPlan(
    prompt=(1, 2, 3),
    tokens=40,
    temperature=0.7,
    seed=UNRULED,
    pace=Pace.GO_ON,
    credit=0,
    stop=None,
    leaves=None,
)
CLIENT = ClientPlan(
    number=0,
    starts=0.0,
    tenant="",
    way="list",
    patience=0.0,
    draft="growing",
    threaded=True,
    slow_reader=0.0,
    at_once=True,
    texts=(TEXT,),
    runner=False,
)
PLAN = Plan(
    seed=1,
    replicas=1,
    rows=8,
    waiting=8,
    lease=15.0,
    keys=False,
    limit=6,
    sharing=False,
    beside=False,
    kinds=KINDS,
    forward=0.1,
    call=0.5,
    node=0.0,
    way=0.01,
    jitter=0.0,
    yields=0.02,
    clients=(CLIENT,),
    faults=(),
)


def scene(*faults: Fault, texts: tuple[TextPlan, ...] = (TEXT,), **client: Any) -> Plan:
    """Return the plan of one client, to which these faults happen."""
    return replace(PLAN, faults=faults, clients=(replace(CLIENT, texts=texts, **client),))


RULED = [replace(TEXT, seed=8 * rule) for rule in range(6)]
PACES = {
    pace.name: tuple(replace(text, pace=pace, credit=credit) for text in RULED)
    for pace, credit in ((Pace.WAIT, 0), (Pace.GO_ON, 3))
}
CUT = Fault(0.5, "cut", 3, 0.0)
FROZEN, HUNG = Fault(0.055, "freeze target", 0, 600.0), Fault(0.5, "hung forward", 0, 600.0)
ENDED: dict[str, tuple[Plan, str, bool]] = {
    **{
        f"cut, {pace}": (scene(CUT, texts=PACES[pace], patience=9.0), "whole", True)
        for pace in PACES
    },
    "cut, without patience": (scene(CUT), "Unavailable", False),
    "an ended target": (scene(Fault(0.5, "end target", 0, 60.0)), "Unavailable", False),
    "a failing forward": (
        scene(Fault(0.5, "failing forward", 0, 0.0), patience=9.0),
        "OutriderError",
        False,
    ),
    "a hung forward": (scene(HUNG), "Unavailable", False),
    "a hung forward, with patience": (scene(HUNG, patience=60.0), "Unavailable", True),
    "silence before it is open": (scene(FROZEN), "Unavailable", False),
}
"""What happens; how each text ends; and whether its session was resumed."""


@pytest.mark.parametrize("name", ENDED)
def test_a_text_ends_as_the_fault_and_its_patience_say(name: str) -> None:
    plan, outcome, resumed = ENDED[name]
    result = run(plan)
    assert result.failures == []
    assert {(text.outcome, text.resumes > 0) for text in result.texts} == {(outcome, resumed)}
    assert not any(text.reopenings for text in result.texts)


def test_a_far_client_without_a_draft_never_stands_still_for_want_of_credit() -> None:
    texts = (replace(TEXT, tokens=272),)
    plan = replace(scene(texts=texts, draft=""), forward=0.01, way=0.075, yields=0.0)
    result = run(plan)
    assert result.failures == []
    came = result.texts[0].came
    assert came[-1] - came[0] < 272 * plan.forward + 4 * plan.way
    assert sum(": up " in line for line in result.lines) < 60


def test_hostile_clients_get_the_targets_own_text_or_a_refusal_and_others_their_texts() -> None:
    friend = replace(CLIENT, tenant="alice", patience=LONG_PATIENCE, texts=tuple(RULED))
    hostile = [
        replace(CLIENT, tenant="bob", number=number, hostile=True) for number in range(1, 13)
    ]
    near = replace(PLAN, rows=16, waiting=64, keys=True, forward=0.001, way=0.0005)
    result = run(replace(near, clients=(friend, *hostile)))
    assert result.failures == []
    assert [text.outcome for text in result.texts] == ["whole"] * 6 + ["hostile"] * 12
