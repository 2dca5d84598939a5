"""Time that passes only when somebody says so."""

from __future__ import annotations


class VirtualClock:
    """Seconds since an arbitrary moment; it never goes back."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Somebody was busy for so long. Raises ValueError for less than nothing."""
        if seconds < 0:
            raise ValueError(f"time does not go back: {seconds} seconds")
        self._now += seconds

    def wait_until(self, moment: float) -> None:
        """Somebody waited for a moment, which may have passed already."""
        self._now = max(self._now, moment)
