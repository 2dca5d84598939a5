"""Default temperature and stop strings of a model, and example prompts for it."""

from __future__ import annotations

from typing import NamedTuple


class TextDefaults(NamedTuple):
    """A model's defaults.

    temperature: None for the interface's default: 1 over HTTP, 0 elsewhere
    stop: stop strings of a request that sets neither temperature nor stop strings
    suggestions: example prompts
    """

    temperature: float | None = None
    stop: tuple[str, ...] = ()
    suggestions: tuple[str, ...] = (
        "Explain speculative decoding in three sentences.",
        "Write a Python function that merges two sorted lists.",
        "Which numbers solve x² = 2x + 3?",
    )


DEFAULTS = {
    # This model continues Python, and loops when greedy. Stop strings end a function or a class.
    "outrider-embedded-target": TextDefaults(
        temperature=0.8,
        stop=("\n\n\n", "\n\n#", "\ndef ", "\nclass ", "\nif __name__"),
        suggestions=(
            'def read_lines(path):\n    """Return the lines of a file."""\n    with open(path',
            'def splitext(path):\n    """Split the extension from a pathname."""\n    sep =',
            'class Stack:\n    """A stack of items."""\n\n    def __init__(self):\n'
            "        self._items = []\n\n    def push(self, item):\n"
            "        self._items.append(item)\n\n    def",
        ),
    ),
}
"""Defaults by the name under which a target serves the model."""


def defaults_of(model: str) -> TextDefaults:
    """Return the defaults of the model with this name."""
    return DEFAULTS.get(model, TextDefaults())
