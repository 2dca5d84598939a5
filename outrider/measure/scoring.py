"""Scores of answers: numbers, and JSON that keeps to a schema."""

from __future__ import annotations

import json
import re
from fractions import Fraction

from inference.grammar import is_whole
from inference.sampling import Grammar, GrammarKind
from outrider.measure.sets import Item

_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?")
_BLOCK = re.compile(r"```[^\n]*\n(.*?)(?:```|\Z)", re.DOTALL)
_RATIONAL = re.compile(r"-?\d{1,99}(\.\d{1,99}|/0*[1-9]\d{0,99})?", re.ASCII)
_FRACTION = re.compile(r"\\[dt]?frac\{([^{}]+)\}\{([^{}]+)\}")
_WORDS = re.compile(r"\\text\{([^{}]*)\}")
_PACKING = re.compile(r"\\left|\\right|\\[!,; $%]|[\s$%]|\^\\circ")


def score(item: Item, text: str) -> bool | None:
    """Return whether an answer is right; None where it cannot be scored.

    A number is what the last box holds, else what follows ####, else the last number. JSON is
    compared with the schema as a grammar: properties are in its order.
    """
    if item.schema is not None:
        block = _BLOCK.search(text)
        try:
            line = json.dumps(json.loads(block[1] if block else text), ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            return False
        return is_whole(Grammar(GrammarKind.JSON_SCHEMA, item.schema), line)
    if item.answer is None:
        return None
    _, hashes, behind = text.rpartition("####")
    numbers = _NUMBER.findall(behind)
    number = "" if not numbers else numbers[0] if hashes else numbers[-1]
    boxed = _last_box(text)
    return _value(number if boxed is None else boxed) == _value(item.answer)


def _last_box(text: str) -> str | None:
    r"""Return the content of the last \boxed{} of a text, inner braces included."""
    _, found, behind = text.rpartition("\\boxed{")
    depth = 1
    for at, letter in enumerate(behind if found else ""):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if not depth:
            return behind[:at]
    return None


def _value(written: str) -> Fraction | str:
    """Return a number, or a text without what only packs it, such as spaces and units."""
    bare = _WORDS.sub("", written)
    plain = _PACKING.sub("", bare if bare.strip() else _WORDS.sub(r"\1", written)).rstrip(".")
    plain = _FRACTION.sub(r"\1/\2", plain)
    number = re.sub(r",(?=\d{3}(?!\d))", "", plain)
    return Fraction(number) if _RATIONAL.fullmatch(number) else plain
