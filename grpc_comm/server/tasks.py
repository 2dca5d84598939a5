"""Helpers for asyncio tasks: reliable cancellation, and errors that no task awaits."""

from __future__ import annotations

import asyncio
from typing import Any

_CANCEL_SECONDS = 0.05


def mark_retrieved(done: asyncio.Future[Any]) -> None:
    """Retrieve a future's error, so that asyncio does not warn if no caller is left. A callback."""
    if not done.cancelled():
        done.exception()


async def cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks until all have ended, repeatedly: asyncio.wait_for() may swallow an attempt."""
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_CANCEL_SECONDS)
