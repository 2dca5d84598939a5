"""The rows of one draft model, lent to one text at a time each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from queue import Empty, SimpleQueue
from typing import Protocol

from inference.backends import Model
from inference.backends.together import together
from inference.decode import Drafter
from inference.drafters.model import ModelDrafter
from inference.errors import LimitExceeded, Unavailable
from inference.policy import Policy

GIVE_UP_SECONDS = 0.05
"""How often one who waits for a row looks whether it is still wanted."""


class Make(Protocol):
    """Makes a Drafter on one row of a model, which several threads may ask."""

    def __call__(self, model: Model, policy: Policy, *, row: int) -> Drafter: ...


Own = Callable[[Model, int], Drafter]
"""Makes one on this row that decides by itself how trees grow."""


class DraftPool:
    """Drafters over a model, whose calls are computed together where they come at the same time.

    policy: how they grow their trees, unless a text asks otherwise.  room: nodes that one tree may rank (None: as many as `policy`);
    the model's rows have that many slots beyond its longest text, and a call of it takes as many nodes.  make: what is lent for a policy.
    own: what is lent to texts that ask for none, in place of `policy`.  seeded: with it, a text is the target's own seeded one.
    """

    def __init__(
        self,
        model: Model,
        policy: Policy,
        room: int | None = None,
        make: Make = ModelDrafter,
        *,
        own: Own | None = None,
        seeded: bool = True,
    ) -> None:
        self.room = policy.most_ranked if room is None else room
        self.seeded = seeded
        self._model, self._make = together(model), make
        self._own: Own = own or (lambda model, row: make(model, policy, row=row))
        self._free: SimpleQueue[int] = SimpleQueue()
        self.check(policy)
        for row in range(model.rows):
            self._free.put(row)

    def check(self, policy: Policy) -> None:
        """Raises LimitExceeded for trees that there is no room for."""
        if policy.most_ranked > self.room:
            raise LimitExceeded(
                f"{policy} ranks up to {policy.most_ranked} nodes for a tree: the draft has room for {self.room}"
            )

    @contextmanager
    def drafter(
        self, policy: Policy | None = None, given_up: threading.Event | None = None
    ) -> Iterator[Drafter]:
        """Waits until a row is free; raises Unavailable when `given_up` is set before one is. policy: of this text's trees."""
        if policy is not None:
            self.check(policy)
        row = self._free.get() if given_up is None else self._wait(given_up)
        try:
            with closing(
                self._own(self._model, row)
                if policy is None
                else self._make(self._model, policy, row=row)
            ) as drafter:
                yield drafter
        finally:
            self._free.put(row)

    def _wait(self, given_up: threading.Event) -> int:
        while not given_up.is_set():
            try:
                return self._free.get(timeout=GIVE_UP_SECONDS)
            except Empty:
                continue
        raise Unavailable("nobody waits for a draft any more")
