"""Which noise is made, and when: what a call needs before it, what the next can need after it."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from inference.backends.neuron.model import Draw, NoiseAhead
from inference.errors import Unavailable
from inference.model.choice.graph_choice import FILLED, WINDOW, NoisePlace


class Device:
    """Windows as a device keeps them, and the calls that filled them."""

    def __init__(self) -> None:
        self.window: dict[tuple[int, int], NoisePlace] = {}
        self.calls: list[int] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.fails = False

    def fill(self, places: Sequence[NoisePlace]) -> None:
        self.go_on.wait(10)
        if self.fails:
            raise Unavailable("the device is gone")
        assert 1 <= len(places) <= FILLED
        self.calls.append(len(places))
        self.window |= {(place.row, place.position % WINDOW): place for place in places}

    def holds(self, draw: Draw) -> bool:
        return all(
            self.window.get((draw.row, position % WINDOW))
            == NoisePlace(draw.row, position, draw.seed)
            for position in range(draw.first, draw.last + 1)
        )


def test_every_call_finds_its_noise_however_texts_grow() -> None:
    device = Device()
    noise = NoiseAhead(device.fill)
    first = 5
    for depth in (0, 3, 15, 15, 1, 15, 0, 7, 15):
        draws = [Draw(row, 40 + row, first, first + depth) for row in (0, 2)]
        noise.before(draws)
        assert all(device.holds(draw) for draw in draws)
        noise.after(draws)
        first += depth + 1  # all of it is accepted


def test_a_text_that_goes_on_waits_for_its_first_noise_only() -> None:
    device = Device()
    noise = NoiseAhead(device.fill)
    noise.before([Draw(0, 1, 10, 14)])
    assert device.calls == [5]
    for first in range(10, 90, 5):
        noise.after([Draw(0, 1, first, first + 4)])
        noise.before([])  # of a greedy text: it does not wait
        noise.before([Draw(0, 1, first + 4, first + 4)])  # held: it waits for the device alone
        made = len(device.calls)
        noise.before([Draw(0, 1, first + 5, first + 9)])
        assert len(device.calls) == made
    assert len(device.calls) < 16


def test_another_text_in_a_row_finds_none_of_the_noise_before() -> None:
    device = Device()
    noise = NoiseAhead(device.fill)
    for seed, first in ((1, 10), (2, 10), (2, 3)):
        noise.before([Draw(0, seed, first, first + 7)])
        assert device.holds(Draw(0, seed, first, first + 7))
    assert device.calls == [8, 8, 7]


def test_an_answer_does_not_wait_for_the_next_noise_and_a_failure_is_told_to_the_next_call() -> (
    None
):
    device = Device()
    noise = NoiseAhead(device.fill)
    noise.before([Draw(0, 1, 0, 3)])
    device.go_on.clear()
    device.fails = True
    noise.after([Draw(0, 1, 0, 3)])
    device.go_on.set()
    with pytest.raises(Unavailable, match="gone"):
        noise.before([Draw(0, 1, 4, 7)])
