"""The plan of the code, as rules over its import graph and names (python -m tests.house)."""

from __future__ import annotations

import pytest

from tests.house import (
    Module,
    circles,
    functions,
    imported,
    length,
    measures,
    modules,
    proto_readers,
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

FOUND = modules()


def room_of(name: str) -> str:
    """The room of a module: the longest of BELOW that it is in, else its package."""
    inside = [room for room in BELOW if name == room or name.startswith(f"{room}.")]
    return max(inside, key=len, default=name.split(".")[0])


@pytest.mark.parametrize("room", BELOW)
def test_a_room_imports_only_the_rooms_below_it(room: str) -> None:
    known = {module.name for module in FOUND}
    wrong = [
        (module.name, other)
        for module in FOUND
        if room_of(module.name) == room
        for other in imported(module, known)
        if room_of(other).split(".")[0] == room.split(".")[0]
        and room_of(other) not in {room, *BELOW[room]}
    ]
    assert not wrong


def test_nothing_is_imported_in_a_circle() -> None:
    assert circles(FOUND) == []


def test_no_sum_of_the_house_rises() -> None:
    """Where one must, its bound in tests/house.py rises in the same commit, with the reason."""
    assert not [one for one in measures() if one.value > one.most]


def test_protobuf_messages_stay_on_the_wire() -> None:
    assert {room_of(name) for name in proto_readers(FOUND)} <= {
        "grpc_comm",
        "grpc_comm.client",
        "grpc_comm.server",
    }


@pytest.mark.parametrize("module", FOUND, ids=lambda module: module.name)
def test_a_file_fits_on_some_screens_and_a_function_on_one(module: Module) -> None:
    assert module.lines <= 350
    assert all(length(function) <= 60 for function in functions(module))
