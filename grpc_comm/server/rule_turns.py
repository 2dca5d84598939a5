"""Builds token rules off the event loop, since a grammar may take long to compile."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from grpc_comm.keys import Key
from grpc_comm.server.tasks import mark_retrieved
from inference.errors import Busy
from inference.token_rule import TokenRule

MakeRule = Callable[[], TokenRule | None]

CHECKS = 4
"""Maximum grammars checked concurrently, each of a different key."""

MAKERS = 32
"""Maximum rules built concurrently. Building is quick unless the grammar is large."""

RETRY_SECONDS = 1.0


class RuleTurns:
    """Checks new grammars, one at a time for each key, and builds rules. Used on the event loop.

    Only grammars that were never checked wait for their key's turn. So a key that keeps sending new
    grammars occupies one thread, and delays neither checked grammars nor penalties and biases.
    """

    def __init__(self) -> None:
        self._checks = ThreadPoolExecutor(CHECKS, "grammar")
        self._makers = ThreadPoolExecutor(MAKERS, "rule")
        self._turns = defaultdict[str, asyncio.Lock](asyncio.Lock)  # by name of key
        self._waiting = Counter[str]()

    async def check(self, key: Key, check: Callable[[], None], limit: int) -> None:
        """Check a grammar once it is this key's turn.

        limit: maximum grammars of one key that wait or are being checked

        Raises Busy if the limit is reached, and any error of `check`.
        """
        waiting = self._waiting[key.name]
        if waiting >= limit:
            raise Busy(
                f"{waiting} new grammars of this key wait to be checked: try again later",
                RETRY_SECONDS,
            )
        self._waiting[key.name] += 1
        try:
            await self._in_turn(self._turns[key.name], check)
        finally:
            self._waiting[key.name] -= 1

    async def make(self, make: MakeRule) -> TokenRule | None:
        """Return the rule that `make` returns, on another thread. Raises any error of `make`."""
        return await asyncio.get_running_loop().run_in_executor(self._makers, make)

    async def _in_turn(self, turn: asyncio.Lock, check: Callable[[], None]) -> None:
        await turn.acquire()
        checking = asyncio.get_running_loop().run_in_executor(self._checks, check)
        checking.add_done_callback(lambda _: turn.release())
        checking.add_done_callback(mark_retrieved)
        await asyncio.shield(checking)  # the turn lasts even if the caller is cancelled

    def close(self) -> None:
        """Stop checking grammars and building rules."""
        for threads in (self._checks, self._makers):
            threads.shutdown(wait=False, cancel_futures=True)
