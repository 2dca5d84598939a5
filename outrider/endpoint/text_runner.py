"""Runs requests on threads for an asyncio server, which iterates over their parts. Concurrency is
limited, and callers share it fairly, as they do the target's checks of new grammars.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, suppress
from threading import Event, Lock
from typing import Any, TypeAlias, TypeVar

from inference.errors import Busy, LimitExceeded, OutriderError, Unavailable
from inference.sampling import Grammar
from outrider.client.client import Client
from outrider.endpoint.text_metrics import TextMetrics
from outrider.text.completion import Completion
from outrider.text.runner import Part, Task, TextRun

RETRY_SECONDS = 1.0
"""Seconds in Retry-After of a request that is refused because too many are running."""

SHARE = 3
"""Maximum ratio of a caller's running requests to the places that stay free for others."""

MAX_WAITING = 8
"""Maximum requests of one caller that wait until the target may check their new grammars."""

MAX_CHECKED = 1000
"""How many checked grammars are remembered, the latest ones."""

READERS = 2
"""Maximum prompts tokenized at the same time; others wait, which limits memory."""

Read = TypeVar("Read")
"""Result of TextRunner.read()."""

Parts: TypeAlias = AsyncGenerator[tuple[int, Part | Completion], None]
"""Parts of several outputs as they arrive, each with the index of its task."""

Queue: TypeAlias = asyncio.Queue[tuple[int, Part | Completion | OutriderError]]


class TextRunner:
    """Runs a client's requests, up to `max_texts` at a time. To be used on one event loop."""

    def __init__(self, client: Client, max_texts: int) -> None:
        self.client, self.max_texts, self.running = client, max_texts, 0
        self.metrics = TextMetrics(client.model)
        self.created = int(time.time())
        self._grammars = GrammarTurns()
        self._of_caller = Counter[str]()  # number of running tasks
        self._waiting = 0  # tasks that wait for their first part
        self._runs = set[TextRun[Any]]()
        self._readers = ThreadPoolExecutor(READERS, "prompt")
        self._over = ""  # why no new task may start; empty if it may
        self._beginning = Lock()  # held to start tasks and to end all

    def check_room(self, count: int, caller: str = "") -> None:
        """Raise LimitExceeded for more tasks than may ever run at once, and Busy for more than may
        start now.

        caller: empty if all share one key. Else each caller leaves room for others: its maximum
        depends on the number of free places (Choudhury and Hahne, 1998)
        """
        limit = max(self.max_texts * SHARE // (SHARE + 1), 1) if caller else self.max_texts
        if count > limit:
            raise LimitExceeded(
                f"the request asks for {count} texts: at most {limit} can run at once"
            )
        share, free = self._of_caller[caller] + count, self.max_texts - self.running - count
        if free < 0 or (caller and share > max(SHARE * free, 1)):
            raise Busy(
                f"{self.running} of {self.max_texts} texts are running, {share - count} of them "
                f"for this caller, and {count} more were requested: try again later",
                RETRY_SECONDS,
            )

    async def read(self, work: Callable[[Event], Read]) -> Read:
        """Run work on prompts on a thread. If this coroutine is cancelled, the work does not start,
        or the event that it was given is set.
        """
        cancelled = Event()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._readers, work, cancelled)
        finally:
            cancelled.set()

    async def run(
        self, tasks: Sequence[Task[Part]], caller: str = "", grammar: Grammar | None = None
    ) -> Parts[Part]:
        """Run tasks on threads. Yields their parts, each with the index of its task.

        grammar: grammar of all the tasks; a new grammar waits for the caller's turn

        A task's last item is its Completion. Leaving the iteration ends all tasks at once. Raises
        LimitExceeded or Busy before any task starts, the error that ended a task, Unavailable for a
        task that end_all() cut off, and LimitExceeded if the budget was spent before a task began.
        """
        async with self._grammars.turn(caller, grammar) as end_turn:
            self.check_room(len(tasks), caller)
            run, queue = self._start(tasks, caller)
            unfinished = len(tasks)
            try:
                while unfinished:
                    index, item = await queue.get()
                    if isinstance(item, OutriderError):
                        raise item
                    if isinstance(item, Completion):
                        self._check(item.raise_failure())
                        unfinished -= 1
                    end_turn()
                    yield index, item
            finally:
                run.end()

    def _start(self, tasks: Sequence[Task[Part]], caller: str) -> tuple[TextRun[Part], Queue[Part]]:
        """Start the tasks. Returns their run, and the queue that receives their parts."""
        loop, queue = asyncio.get_running_loop(), Queue[Part]()

        def put(index: int, item: Part | Completion | OutriderError) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(deliver, index, item)

        silent = set(range(len(tasks)))  # tasks without a part so far

        def deliver(index: int, item: Part | Completion | OutriderError) -> None:
            if index in silent:
                silent.discard(index)
                self._waiting -= 1
            if isinstance(item, Completion | OutriderError):
                self._count(-1, caller)
            if isinstance(item, Completion) and item.failure is None:
                self.metrics.count(item)
            queue.put_nowait((index, item))

        with self._beginning:
            if self._over:
                raise Unavailable(self._over)
            self._waiting += len(tasks)
            self._count(len(tasks), caller)
            run = TextRun(tasks, len(tasks), put)
            self._runs = {run, *(earlier for earlier in self._runs if earlier.is_running)}
        return run, queue

    def _check(self, text: Completion) -> None:
        """Raise Unavailable if end_all() cut the output off, LimitExceeded if no budget is left."""
        if text.finish_reason == "cancelled":
            raise Unavailable(self._over)
        if text.finish_reason == "spent" and not text.token_ids:
            raise LimitExceeded("no text was started: the spending limit (--max_usd) is reached")

    def end_all(self, reason: str) -> None:
        """End all tasks, and refuse new ones with this reason."""
        with self._beginning:
            self._over = reason
            for run in self._runs:
                run.end()

    def close(self) -> None:
        """Wait until no task is running."""
        self._readers.shutdown(cancel_futures=True)
        for run in self._runs:
            run.join()

    def _count(self, change: int, caller: str) -> None:
        self.running += change
        self._of_caller[caller] += change

    def metrics_page(self) -> bytes:
        """Return the metrics in Prometheus's text format."""
        return self.metrics.page(self.running, self._waiting, self.client.target.description.rows)


class GrammarTurns:
    """Admits one new grammar of each caller at a time. To be used on one event loop.

    The target sees one key for all callers, and checks a key's new grammars one at a time. So each
    caller may have one grammar in the target's queue; its further grammars wait here.
    """

    def __init__(self) -> None:
        self._checked = OrderedDict[str, None]()
        self._turns = defaultdict[str, asyncio.Lock](asyncio.Lock)
        self._waiting = Counter[str]()

    @asynccontextmanager
    async def turn(self, caller: str, grammar: Grammar | None) -> AsyncIterator[Callable[[], None]]:
        """Wait for the caller's turn, unless the grammar was checked; leaving the context ends it.

        Yields a function that ends the turn, too: the target has checked the grammar. Raises Busy
        if MAX_WAITING requests of the caller are waiting already.
        """
        if grammar is None or grammar.digest in self._checked:
            yield lambda: None
            return
        waiting, lock = self._waiting[caller], self._turns[caller]
        if waiting >= MAX_WAITING:
            raise Busy(
                f"{waiting} texts with new grammars wait for this caller: try again later",
                RETRY_SECONDS,
            )
        self._waiting[caller] += 1
        try:
            await lock.acquire()
        finally:
            self._waiting[caller] -= 1
        with ExitStack() as turn:
            turn.callback(lock.release)

            def end() -> None:
                self._remember(grammar.digest)
                turn.close()

            if grammar.digest in self._checked:
                end()
            yield end

    def _remember(self, digest: str) -> None:
        self._checked[digest] = None
        self._checked.move_to_end(digest)
        if len(self._checked) > MAX_CHECKED:
            self._checked.popitem(last=False)
