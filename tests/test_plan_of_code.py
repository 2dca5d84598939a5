"""The plan of the code, as rules over its imports, sizes and pages (python -m tests.house)."""

from __future__ import annotations

import re

import pytest

from tests.house import (
    ROOMS,
    TOTALS,
    Total,
    circle,
    dead_links,
    imports,
    modules,
    too_long,
    totals,
)

TOP = "inference"
BELOW = {
    TOP: set[str](),
    "inference.flags": {TOP},
    "inference.model": {TOP},
    "inference.backends": {TOP, "inference.model"},
    "inference.planner": {TOP, "inference.backends"},
    "inference.cost": {TOP, "inference.planner"},
    "inference.drafters": {TOP, "inference.backends", "inference.planner"},
    "inference.engine": {TOP, "inference.backends", "inference.drafters", "inference.planner"},
    "grpc_comm.client": {"grpc_comm"},
    "grpc_comm.server": {"grpc_comm", "grpc_comm.observability"},
    "grpc_comm.observability": {"grpc_comm"},
    "grpc_comm": set[str](),
}
"""Rooms, and which others of the same package they may import."""


def room_of(name: str) -> str:
    """The room of a module: the longest of BELOW that it is in, else its package."""
    inside = [room for room in BELOW if name == room or name.startswith(f"{room}.")]
    return max(inside, key=len, default=name.split(".")[0])


@pytest.mark.parametrize("room", BELOW)
def test_a_room_imports_only_the_rooms_below_it(room: str) -> None:
    wrong = [
        (module, other)
        for module, others in imports().items()
        if room_of(module) == room
        for other in others
        if room_of(other).split(".")[0] == room.split(".")[0]
        and room_of(other) not in {room, *BELOW[room]}
    ]
    assert not wrong


def test_nothing_is_imported_in_a_circle() -> None:
    assert circle() == []


def test_protobuf_messages_stay_on_the_wire() -> None:
    readers = {
        room_of(module.name)
        for module in modules(*ROOMS)
        if re.search(r"\bverifier_pb2\b(?!_grpc)", module.path.read_text(encoding="utf-8"))
    }
    assert readers <= {"grpc_comm", "grpc_comm.client", "grpc_comm.server"}


def test_a_file_fits_on_some_screens_and_a_function_on_one() -> None:
    assert [*too_long()] == []


def test_no_link_and_no_path_in_a_page_is_dead() -> None:
    assert [*dead_links()] == []


@pytest.mark.parametrize("total", TOTALS, ids=lambda total: total.name)
def test_a_total_stays_below_its_limit(total: Total) -> None:
    """A limit may only be lowered."""
    assert totals()[total.name] <= total.limit
