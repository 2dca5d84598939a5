"""The target's features of a text as they come over the wire, for a head on the user's machine."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from statistics import median

import numpy as np
import torch
from torch import Tensor

from inference.errors import Mismatch
from inference.features import FeatureBlock, FeatureForm, FeatureRequest, from_int8
from inference.tree import IntArray

WINDOW = 64
"""Positions of a prompt that are asked for at most, the last ones."""

WINDOW_SECONDS = 0.25
"""Seconds that these take the link at most, as far as its speed is known."""

GAPS = 32
"""Latest messages of prompts whose median tells the seconds that a byte takes."""

TEXTS_WITHOUT = 8
"""Texts without features after one in which they were not worth their bytes."""


class ReceivedFeatures:
    """A FeatureSink, and the Features of the text at hand. The reader's thread puts them in, the
    loop's thread reads them.

    length: longest text in tokens that the head drafts for; of a longer one it wants no more
    bytes_per_second: that are asked for; 0 asks for nothing
    clock: returns seconds
    """

    def __init__(
        self,
        form: FeatureForm,
        length: int,
        bytes_per_second: int,
        *,
        window: int = WINDOW,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.form, self._rate, self._window, self._clock = form, bytes_per_second, window, clock
        layers = len(form.layers)
        self._scales = np.empty((length, layers), dtype=np.float32)
        self._values = np.empty((length, layers, form.hidden), dtype=np.int8)
        self._gaps = deque[float](maxlen=GAPS)  # seconds a byte
        self._came: float | None = None  # when the last message of the prompt came
        self._known, self._prompt, self._wanted, self._rests = range(0), 0, False, 0

    @property
    def known(self) -> range:
        return self._known

    def at(self, positions: IntArray) -> Tensor:
        return torch.from_numpy(from_int8(self._scales[positions], self._values[positions]))

    @property
    def ready(self) -> bool:
        """Whether the features of the prompt's end are there, and more come."""
        return self._wanted and len(self._known) > 0 and self._known.stop >= self._prompt

    @property
    def seconds(self) -> float:
        """Seconds that a position's features take the link; 0 while that is not known."""
        return self.form.position_bytes * median(self._gaps) if self._gaps else 0.0

    def give_up(self) -> None:
        """They are not worth their bytes: want no more in this text, and none in the next ones."""
        self._wanted, self._rests = False, TEXTS_WITHOUT

    @property
    def request(self) -> FeatureRequest | None:
        if not self._rate:
            return None
        return FeatureRequest(self.form, self._known.stop, self._rate if self._wanted else 0)

    def begin(self, length: int) -> None:
        self._wanted = self._rests == 0 and length <= len(self._values)
        self._rests = max(self._rests - 1, 0)
        self._prompt = length - 1  # the root's own feature is computed later
        first = max(self._prompt - self._fitting, 0)
        self._known, self._came = range(first, first), None

    def take(self, block: FeatureBlock) -> bool:
        position, end = block.position, block.position + len(block.values)
        if position < self._known.stop:
            raise Mismatch(f"sent features of position {position} twice")
        if end > len(self._values):  # the head drafts no further
            self._wanted = False
            return False
        self._scales[position:end], self._values[position:end] = block.scales, block.values
        start = self._known.start if position == self._known.stop else position
        self._known = range(start, end)
        if position < self._prompt:
            self._measure(len(block.values))
        return self._wanted

    def _measure(self, positions: int) -> None:
        """Take the time since the prompt's last message as the link's for this one."""
        now = self._clock()
        if self._came is not None:
            self._gaps.append((now - self._came) / (positions * self.form.position_bytes))
        self._came = now

    @property
    def _fitting(self) -> int:
        """Positions of a prompt that are asked for."""
        each = max(self.form.position_bytes / self._rate if self._rate else 0.0, self.seconds)
        return min(self._window, max(int(WINDOW_SECONDS / each), 1) if each else self._window)
