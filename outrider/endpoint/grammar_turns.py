"""Lets an endpoint's callers take turns when the target has to check new grammars.

The target sees one key for all callers, and checks a key's new grammars one at a time. So each
caller may have one grammar in the target's queue; its further grammars wait in the endpoint.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable

from inference.errors import Busy
from inference.sampling import Grammar

MAX_WAITING = 8
"""Maximum requests of one caller that wait for its turn."""

MAX_CHECKED = 1000
"""How many checked grammars are remembered, the latest ones."""

RETRY_SECONDS = 1.0

EndTurn = Callable[[bool], None]
"""Ends a turn if it has not ended. The argument: whether the target has checked the grammar."""


class GrammarTurns:
    """Admits one new grammar of each caller at a time. To be used on one event loop."""

    def __init__(self) -> None:
        self._checked = OrderedDict[str, None]()
        self._turns = defaultdict[str, asyncio.Lock](asyncio.Lock)
        self._waiting = Counter[str]()

    async def begin(self, caller: str, grammar: Grammar | None) -> EndTurn:
        """Wait for the caller's turn, unless the grammar was checked. Returns a function to end it.

        Raises Busy if MAX_WAITING requests of the caller are waiting already.
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
