"""Answers of an engine in an environment of its own. Nothing of Outrider is imported there.

Standard input has a request a line: {"arm", "prompt", "tokens", "stop_ids"}. Standard output has a
line with the versions of packages first. An answer is lines of {"ids"} as they come, then one of
{"forwards"}, the target's forward passes. What the engine prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

Hear = Callable[[list[int]], None]
Play = Callable[[Any, int, list[int], Hear], int]
"""Generates up to so many tokens after a prompt, or up to one of the stop ids. Returns the forward
passes.
"""


def answer(load: Callable[[], Mapping[str, Play]], packages: tuple[str, ...]) -> None:
    """Load the arms, and answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def tell(**line: Any) -> None:
        print(json.dumps(line), file=answers, flush=True)

    arms = load()
    tell(**{package: version(package) for package in packages})
    for line in sys.stdin:
        request = json.loads(line)
        play = arms[request["arm"]]
        order = request["prompt"], request["tokens"], request["stop_ids"]
        tell(forwards=play(*order, lambda ids: tell(ids=ids)))
