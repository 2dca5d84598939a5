"""Texts made on threads, for an asyncio server: each is an asynchronous iteration of its pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from threading import Event
from typing import TypeAlias

from inference.errors import Busy, OutriderError
from outrider.client import Client
from outrider.completion import Piece, Request
from outrider.generation import Generation, generate
from outrider.serve.text_metrics import TextMetrics

RETRY_SECONDS = 1.0
"""When a client may ask again after all threads were taken."""


_Item: TypeAlias = Piece | Generation | OutriderError
_Put: TypeAlias = Callable[[_Item], None]


class Texts:
    """Makes texts with a client, up to `most` at the same time. To be used on one event loop."""

    def __init__(self, client: Client, most: int) -> None:
        self.client, self.most, self.running = client, most, 0
        self.metrics = TextMetrics(client.model)
        self._threads = ThreadPoolExecutor(most, "text")

    async def pieces(
        self, requests: Sequence[Request], stop: Sequence[str]
    ) -> AsyncGenerator[tuple[int, Piece | Generation], None]:
        """Yield pieces of all texts as they come, each with the index of its request.

        Each text ends with its Generation. Leaving the iteration ends all texts at once. Raises
        Busy, before anything begins, and the error that ended a text.
        """
        if self.running + len(requests) > self.most:
            raise Busy(
                f"{self.running} of {self.most} texts are being made, {len(requests)} more were "
                "asked for: ask again later",
                RETRY_SECONDS,
            )
        loop = asyncio.get_running_loop()
        queue = asyncio.Queue[tuple[int, _Item]]()

        def put(index: int, item: _Item) -> None:
            loop.call_soon_threadsafe(queue.put_nowait, (index, item))

        ends = [Event() for _ in requests]
        for index, (request, end) in enumerate(zip(requests, ends, strict=True)):
            self._count(1)
            put_one = partial(put, index)
            making = loop.run_in_executor(self._threads, self._make, request, stop, put_one, end)
            making.add_done_callback(self._ended)
        unfinished = len(requests)
        try:
            while unfinished:
                index, item = await queue.get()
                if isinstance(item, OutriderError):
                    raise item
                yield index, item
                unfinished -= isinstance(item, Generation)
        finally:
            for end in ends:
                end.set()

    async def whole(self, requests: Sequence[Request], stop: Sequence[str]) -> list[Generation]:
        """The finished texts, in the order of the requests. Errors are those of pieces()."""
        found = dict[int, Generation]()
        async with aclosing(self.pieces(requests, stop)) as pieces:
            async for index, item in pieces:
                if isinstance(item, Generation):
                    found[index] = item
        return [found[index] for index in range(len(requests))]

    def close(self) -> None:
        """Wait for the texts in the making, which their requests have ended."""
        self._threads.shutdown()

    def _make(
        self, request: Request, stop: Sequence[str], put: _Put, end: Event
    ) -> Generation | None:
        """Make a text on this thread. Returns None for one that an error ended."""
        try:
            made = generate(self.client, request, stop, put, end)
        except OutriderError as error:
            put(error)
            return None
        put(made)
        return made

    def _ended(self, making: asyncio.Future[Generation | None]) -> None:
        self._count(-1)
        made = making.result()
        if made is not None:
            self.metrics.count(made)

    def _count(self, more: int) -> None:
        self.running += more
        self.metrics.running.set(self.running)
