"""Default temperature and stop strings of requests, and example prompts that suit a model."""

from __future__ import annotations

from typing import NamedTuple


class TextDefaults(NamedTuple):
    """Defaults of one model.

    temperature: None leaves it to the interface: 1 over HTTP, 0 elsewhere
    stop: strings that end a text whose request gives neither temperature nor stop strings
    suggestions: prompts to try first
    """

    temperature: float | None = None
    stop: tuple[str, ...] = ()
    suggestions: tuple[str, ...] = (
        "Explain speculative decoding in three sentences.",
        "Write a Python function that merges two sorted lists.",
        "Which numbers solve x² = 2x + 3?",
    )


DEFAULTS = {
    # It continues Python, and loops when greedy. The stop strings end a function or a class.
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
"""Models that have defaults of their own, by the name under which a target serves them."""


def defaults_of(model: str) -> TextDefaults:
    """The defaults of the model of this name."""
    return DEFAULTS.get(model, TextDefaults())
