"""Has the noise of the next positions made on the device while nobody waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from inference.backends import Segment
from inference.model.noise_window import FILLED, WINDOW, Place


class Draw(NamedTuple):
    """Noise that one row of a call needs, of positions `first` to `last`."""

    row: int
    seed: int
    first: int
    last: int

    def ahead(self) -> Draw:
        """Noise that this row's next call can need: its root is one of the tokens chosen now."""
        return self._replace(first=self.first + 1, last=self.last + FILLED)

    def whole(self) -> Draw:
        """The whole window from here on."""
        return self._replace(last=self.first + WINDOW - 1)


def draws_of(segments: Iterable[Segment]) -> list[Draw]:
    """Return what choosing at the picked nodes of these rows needs."""
    drawn = [segment for segment in segments if not segment.params.greedy]
    after = [segment.positions[segment.pick] + 1 for segment in drawn]
    return [
        Draw(segment.row, segment.params.seed, int(positions.min()), int(positions.max()))
        for segment, positions in zip(drawn, after, strict=True)
    ]


class NoiseAhead:
    """Knows which noise lies in the windows, and has filled what lacks.

    fill: makes the noise of 1 to FILLED places by one call on the device
    """

    def __init__(self, fill: Callable[[Sequence[Place]], None]) -> None:
        self._fill = fill
        self._held: dict[tuple[int, int], Place] = {}  # by row and place in its window
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="noise")
        self._later: Future[None] | None = None

    def before(self, draws: Sequence[Draw]) -> None:
        """Return when the windows hold all of this, of at most WINDOW positions a row. Raises what
        the device raised, also while it filled ahead.
        """
        if draws and self._later is not None:
            later, self._later = self._later, None
            later.result()
        self._make([place for draw in draws for place in self._lacking(draw)])

    def after(self, draws: Sequence[Draw]) -> None:
        """Begin to fill what the next call of these rows can need. Returns at once."""
        near = [draw.ahead() for draw in draws]
        short = [draw for draw in near if any(self._lacking(draw))]
        places = [place for draw in short for place in self._lacking(draw.whole())]
        if places:
            self._later = self._thread.submit(self._make, places)

    def _lacking(self, draw: Draw) -> Iterator[Place]:
        for position in range(draw.first, draw.last + 1):
            place = Place(draw.row, position, draw.seed)
            if self._held.get((draw.row, position % WINDOW)) != place:
                yield place

    def _make(self, places: Sequence[Place]) -> None:
        for first in range(0, len(places), FILLED):
            some = places[first : first + FILLED]
            self._fill(some)
            self._held |= {(place.row, place.position % WINDOW): place for place in some}
