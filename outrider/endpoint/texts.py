"""Texts made on threads, for an asyncio server: each is an asynchronous iteration of its pieces."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from threading import Event, Lock
from typing import TypeAlias, TypeVar

from inference.errors import Busy, LimitExceeded, OutriderError, Unavailable
from outrider.client.client import Client
from outrider.endpoint.text_metrics import TextMetrics
from outrider.text.completion import Piece, Request
from outrider.text.generation import Generation, generate

RETRY_SECONDS = 1.0
"""When a client may ask again after all threads were taken."""

SHARE = 3
"""How many times as many texts a caller among several has as stay free for others."""

READERS = 2
"""Prompts that are cut into tokens at the same time. Others wait, so that memory is bounded."""

Read = TypeVar("Read")
"""What is made of prompts."""

Part = TypeVar("Part")
"""What a job hands over while it makes a text, such as a piece of it."""

Job: TypeAlias = Callable[[Callable[[Part], None], Event], Generation]
"""Makes a text: hands parts over, and ends when the event is set."""

Parts: TypeAlias = AsyncGenerator[tuple[int, Part | Generation], None]
"""Parts of several texts as they come, each with the index of its job."""


class Texts:
    """Makes texts with a client, up to `most` at the same time. To be used on one event loop."""

    def __init__(self, client: Client, most: int) -> None:
        self.client, self.most, self.running = client, most, 0
        self.metrics = TextMetrics(client.model)
        self.created = int(time.time())
        self._held = Counter[str]()  # texts of each caller
        self._threads = ThreadPoolExecutor(most, "text")
        self._readers = ThreadPoolExecutor(READERS, "prompt")
        self._ends = set[Event]()
        self._over = ""  # why no text is made any more
        self._beginning = Lock()  # of texts, and of the end of all

    def check_room(self, count: int, caller: str = "") -> None:
        """Raise LimitExceeded for more texts than are ever made at once, and Busy where there is
        no room for so many more at present.

        caller: one of several; each leaves room for others, by a threshold that moves with what is
        free (Choudhury and Hahne, 1998)
        """
        most = max(self.most * SHARE // (SHARE + 1), 1) if caller else self.most
        if count > most:
            raise LimitExceeded(
                f"{count} texts were asked for in one request: at most {most} are made at "
                "the same time"
            )
        held, free = self._held[caller] + count, self.most - self.running - count
        if free < 0 or (caller and held > max(SHARE * free, 1)):
            raise Busy(
                f"{self.running} of {self.most} texts are being made, {held - count} of them for "
                f"this caller, and {count} more were asked for: ask again later",
                RETRY_SECONDS,
            )

    async def read(self, work: Callable[[Event], Read]) -> Read:
        """Run work on prompts on a thread. Its event is set, and work that has not begun is
        dropped, when the caller is cancelled.
        """
        left = Event()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._readers, work, left)
        finally:
            left.set()

    async def run(self, jobs: Sequence[Job[Part]], caller: str = "") -> Parts[Part]:
        """Run jobs on threads. Yield what they hand over, each with the index of its job.

        Each job ends with its Generation. Leaving the iteration ends all jobs at once. Raises
        LimitExceeded and Busy before anything begins, the error that ended a job, Unavailable for
        a text that end_all() cut, and LimitExceeded for one that there was no money for.
        """
        self.check_room(len(jobs), caller)
        loop, ends = asyncio.get_running_loop(), [Event() for _ in jobs]
        queue = asyncio.Queue[tuple[int, Part | Generation | OutriderError]]()

        def put(index: int, item: Part | Generation | OutriderError) -> None:
            loop.call_soon_threadsafe(queue.put_nowait, (index, item))

        with self._beginning:
            if self._over:
                raise Unavailable(self._over)
            self._ends.update(ends)
            for index, (job, end) in enumerate(zip(jobs, ends, strict=True)):
                self._count(1, caller)
                making = loop.run_in_executor(self._threads, job, partial(put, index), end)
                making.add_done_callback(partial(self._ended, partial(put, index), caller))
        unfinished = len(jobs)
        try:
            while unfinished:
                index, item = await queue.get()
                if isinstance(item, OutriderError):
                    raise item
                if isinstance(item, Generation):
                    self._check(item)
                yield index, item
                unfinished -= isinstance(item, Generation)
        finally:
            for end in ends:
                end.set()
            with self._beginning:
                self._ends.difference_update(ends)

    def _check(self, made: Generation) -> None:
        """Refuse a part of a text that would look like all of it."""
        if made.finish_reason == "cancelled":
            raise Unavailable(self._over)
        if made.finish_reason == "spent" and not made.token_ids:
            raise LimitExceeded("no text is begun: what texts may cost (--max_usd) is spent")

    def pieces(
        self, requests: Sequence[Request], stop: Sequence[str], caller: str = ""
    ) -> Parts[Piece]:
        """Yield pieces of the texts as they come, as run() does."""
        jobs = [partial(generate, self.client, request, stop) for request in requests]
        return self.run(jobs, caller)

    async def whole(
        self, requests: Sequence[Request], stop: Sequence[str], caller: str = ""
    ) -> list[Generation]:
        """The finished texts, in the order of the requests. Errors are those of pieces()."""
        found = dict[int, Generation]()
        async with aclosing(self.pieces(requests, stop, caller)) as pieces:
            async for index, item in pieces:
                if isinstance(item, Generation):
                    found[index] = item
        return [found[index] for index in range(len(requests))]

    def end_all(self, reason: str) -> None:
        """End all texts in the making, and make none any more. Those who wait are told why."""
        with self._beginning:
            self._over = reason
            for end in self._ends:
                end.set()

    def close(self) -> None:
        """Wait for the texts that were ended."""
        self._readers.shutdown(cancel_futures=True)
        self._threads.shutdown()

    def _ended(
        self,
        put: Callable[[Generation | OutriderError], None],
        caller: str,
        making: asyncio.Future[Generation],
    ) -> None:
        """Count a text that ended, and hand over what came of it."""
        self._count(-1, caller)
        error = making.exception()
        if error is None:
            self.metrics.count(making.result())
            put(making.result())
        elif isinstance(error, OutriderError):
            put(error)
        else:
            told = "a text was ended by an error of this program"
            making.get_loop().call_exception_handler({"message": told, "exception": error})
            put(OutriderError(f"{told}: its log has it"))

    def _count(self, more: int, caller: str) -> None:
        self.running += more
        self._held[caller] += more
        self.metrics.running.set(self.running)
