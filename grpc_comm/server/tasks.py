"""Tasks of the event loop that end even when cancelled, and errors that no task awaits."""

from __future__ import annotations

import asyncio
from typing import Any

_CANCEL_SECONDS = 0.05


def mark_retrieved(done: asyncio.Future[Any]) -> None:
    """A callback: retrieve an error, so that asyncio does not warn where no caller is left."""
    if not done.cancelled():
        done.exception()


async def cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks until all have ended: asyncio.wait_for() may swallow a cancellation."""
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_CANCEL_SECONDS)
