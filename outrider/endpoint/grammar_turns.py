"""The turns of an endpoint's callers at having the target check a new grammar.

The target sees one key for all callers, and checks one new grammar of a key at a time.
So each caller has one in the target's queue, and the others wait here.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable

from inference.errors import Busy
from inference.sampling import Grammar

MAX_WAITING = 8
"""Texts of one caller that wait for its turn."""

MAX_CHECKED = 1000
"""Number of the latest checked grammars that are remembered."""

RETRY_SECONDS = 1.0

EndTurn = Callable[[bool], None]
"""Ends a turn, once: whether the target has checked the grammar."""


class GrammarTurns:
    """One new grammar at a time for each caller. Used on one event loop."""

    def __init__(self) -> None:
        self._checked = OrderedDict[str, None]()
        self._turns = defaultdict[str, asyncio.Lock](asyncio.Lock)
        self._waiting = Counter[str]()

    async def begin(self, caller: str, grammar: Grammar | None) -> EndTurn:
        """Wait for the caller's turn, unless the grammar was checked. Return what ends the turn.

        Raises Busy where MAX_WAITING texts of the caller wait already.
        """
        if grammar is None or grammar.digest in self._checked:
            return lambda checked: None
        waiting, turn, digest = self._waiting[caller], self._turns[caller], grammar.digest
        if waiting >= MAX_WAITING:
            raise Busy(
                f"{waiting} texts with new grammars wait for this caller: try again later",
                RETRY_SECONDS,
            )
        self._waiting[caller] += 1
        try:
            await turn.acquire()
        finally:
            self._waiting[caller] -= 1
        ended = False

        def end(checked: bool) -> None:
            nonlocal ended
            if checked:
                self._checked[digest] = None
                self._checked.move_to_end(digest)
                if len(self._checked) > MAX_CHECKED:
                    self._checked.popitem(last=False)
            if not ended:
                ended = True
                turn.release()

        if digest in self._checked:
            end(True)
        return end
