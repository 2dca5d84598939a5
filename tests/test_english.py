"""Messages, help and documentation avoid the phrases of a dialect that no reader speaks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.house import ROOMS
from tests.support.repository import ROOT

EVERYWHERE = (
    r"nor where", r"decodes on", r"hereby", r"thereof", r"shall", r"spoilt", r"times as fast",
    r"what is learnt",
)  # fmt: skip
"""Phrases that neither docstrings nor texts for users contain."""
FOR_USERS = (
    *EVERYWHERE, r"whoever", r"whatever (?:comes|came)", r"(?:is|be) told", r"told of",
    r"comes? of (?:it|them)", r"asks? nobody", r"nobody (?:listens|can be asked)", r"hears?",
    r"dear(?:er|est)", r"goes on", r"stands? in line",
)  # fmt: skip
"""Phrases that README.md, docs/ and messages, which are strings with a space, do not contain."""


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
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    found = [
        match
        for page in pages
        for match in _matches(str(page.relative_to(ROOT)), page.read_text(), 1, FOR_USERS)
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
