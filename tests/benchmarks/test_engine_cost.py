"""What a forward of many sessions costs beside its own work."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from benchmarks.engine import Load
from inference.engine.batch_runner import collect_rarely

FORWARDS = 4


@pytest.fixture
def usual_collector() -> Iterator[None]:
    """Python's own settings of the garbage collector, before and after a test."""
    usual = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*usual)


def collections_within(load: Load) -> int:
    """Collections of garbage during some forwards; the messages between them are not counted."""
    begun = list[str]()

    def count(phase: str, info: dict[str, int]) -> None:
        begun.append(phase)

    load.model.meanwhile = lambda: None
    gc.collect()
    for _ in range(FORWARDS):
        gc.callbacks.append(count)
        load.engine.step()
        gc.callbacks.remove(count)
        load.refill()
    return begun.count("start")


@pytest.mark.slow
@pytest.mark.usefixtures("usual_collector")
def test_forwards_of_many_sessions_set_off_no_collection_of_garbage() -> None:
    load = Load(sessions=64, nodes=4)
    assert collections_within(load), "Python's own settings make some"
    collect_rarely()
    assert not collections_within(load)
