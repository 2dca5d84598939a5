"""The rows of one draft model, lent to one text at a time each."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

from inference.backends import Model
from inference.drafters.model import ModelDrafter
from inference.policy import Policy


class DraftPool:
    """Drafters of one policy over a model, which serves one call at a time."""

    def __init__(self, model: Model, policy: Policy) -> None:
        self._free: SimpleQueue[ModelDrafter] = SimpleQueue()
        lock = threading.Lock()
        for row in range(model.rows):
            self._free.put(ModelDrafter(model, policy, row=row, lock=lock))

    @contextmanager
    def drafter(self) -> Iterator[ModelDrafter]:
        """Waits until a row is free."""
        drafter = self._free.get()
        try:
            yield drafter
        finally:
            drafter.close()
            self._free.put(drafter)
