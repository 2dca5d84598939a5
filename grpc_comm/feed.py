"""What threads make, on its way to the event loop."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Feed(Generic[T]):
    """A queue from any thread to the running loop, which also carries what ended its maker early."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[T | BaseException] = asyncio.Queue()

    def put(self, item: T) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self._queue.put_nowait, item)

    def follow(self, maker: asyncio.Future[None]) -> None:
        """get() raises what `maker` raises, after everything that it has put."""
        maker.add_done_callback(self._ended)

    async def get(self) -> T:
        item = await self._queue.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def _ended(self, maker: asyncio.Future[None]) -> None:
        error = None if maker.cancelled() else maker.exception()
        if error is not None:
            self._queue.put_nowait(error)
