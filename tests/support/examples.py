"""How many examples property tests try, and whether they are the same in every run.

EXAMPLES=N draws anew, and N times as many; a failure prints the line that repeats it. Without it
each run tries the same ones.
"""

from __future__ import annotations

import os

import hypothesis

TIMES = int(os.environ.get("EXAMPLES", "0"))


def examples(count: int) -> int:
    """The examples of a test that tries so many in the ordinary run."""
    return count * max(TIMES, 1)


def load_profile() -> None:
    """Set what holds for each property test. A busy machine is no failure: there is no deadline."""
    hypothesis.settings.register_profile(
        "outrider",
        deadline=None,
        derandomize=not TIMES,
        max_examples=examples(100),
        print_blob=True,
    )
    hypothesis.settings.load_profile("outrider")
