"""Makes the rules of sessions beside the event loop, since a grammar may take long to compile."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from grpc_comm.keys import Key
from inference.errors import Busy
from inference.token_rule import TokenRule

MakeRule = Callable[[], TokenRule | None]

THREADS = 4
"""Rules that are made at once, of as many keys."""

RETRY_SECONDS = 1.0


class RuleTurns:
    """The turns of keys at having a rule made: one at a time for each key. Used on the event loop.

    So a key that compiles without end takes one thread, and the turns of nobody else.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "rule")
        self._turns = defaultdict[str, asyncio.Lock](asyncio.Lock)  # by the names of keys
        self._waiting = Counter[str]()

    async def make(self, key: Key, make: MakeRule, most: int) -> TokenRule | None:
        """Return the rule, once it is this key's turn.

        most: rules that may be made or wait for one key

        Raises Busy beyond them, and what `make` raises.
        """
        if self._waiting[key.name] >= most:
            raise Busy(
                f"{most} grammars of this key wait to be compiled: try again later", RETRY_SECONDS
            )
        self._waiting[key.name] += 1
        try:
            return await self._in_turn(self._turns[key.name], make)
        finally:
            self._waiting[key.name] -= 1

    async def _in_turn(self, turn: asyncio.Lock, make: MakeRule) -> TokenRule | None:
        await turn.acquire()
        making = asyncio.get_running_loop().run_in_executor(self._threads, make)

        def end_turn(done: asyncio.Future[TokenRule | None]) -> None:
            turn.release()
            done.cancelled() or done.exception()  # looked at, also where nobody waits any more

        making.add_done_callback(end_turn)
        return await asyncio.shield(making)  # who leaves does not get another turn meanwhile

    def close(self) -> None:
        """Make no more rules."""
        self._threads.shutdown(wait=False, cancel_futures=True)
