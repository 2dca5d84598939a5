"""Messages, help and documentation avoid the phrases of a dialect that no reader speaks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.house import ROOMS
from tests.support.repository import ROOT

EVERYWHERE = (
    r"nor where", r"(?:decodes|guesses) on", r"hereby", r"thereof", r"shall", r"spoilt",
    r"somebody", r"times as fast", r"what is learnt", r"whoever", r"whatever (?:comes|came)",
    r"comes? of (?:it|them)", r"told of", r"asks? nobody", r"stands? (?:in line|still)",
    r"mend(?:s|ed)?", r"dear(?:er|est)?", r"go(?:es)? on", r"come again", r"makes? a text",
    r"ships? here", r"names? (?:the |its )?tokens", r"as (?:it stands|they stand)",
)  # fmt: skip
"""Phrases that neither docstrings nor texts for users contain."""
FOR_USERS = (
    *EVERYWHERE, r"(?:is|be) told", r"nobody (?:listens|can be asked)", r"hears?", r"likeliest",
    r"quick(?:er|est)", r"dealt out", r"what lacks", r"broken off",
)  # fmt: skip
"""Phrases that pages and messages, which are strings with a space, do not contain."""
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


def _matches(place: str, text: str, line: int, phrases: tuple[str, ...]) -> Iterator[str]:
    for match in re.finditer(rf"\b(?:{'|'.join(phrases)})\b", text, re.IGNORECASE):
        yield f"{place}:{line + text.count(chr(10), 0, match.start())}: {match[0]!r}"


def _strings(file: Path) -> Iterator[tuple[ast.Constant, bool]]:
    """Every string with a space in a file, and whether it is a docstring."""
    tree = ast.parse(file.read_text())
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node, id(node) in alone


def test_documentation_is_in_plain_english() -> None:
    found = [
        match for page in PAGES for match in _matches(page.name, page.read_text(), 1, FOR_USERS)
    ]
    assert not found, "\n".join(found)


def test_strings_of_the_product_are_in_plain_english() -> None:
    found = [
        match
        for package in ROOMS
        for file in sorted((ROOT / package).rglob("*.py"))
        for node, is_docstring in _strings(file)
        for phrases in [EVERYWHERE if is_docstring else FOR_USERS]
        for match in _matches(str(file.relative_to(ROOT)), str(node.value), node.lineno, phrases)
    ]
    assert not found, "\n".join(found)
