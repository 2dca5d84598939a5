"""Scores of answers: numbers, code that passes tests, and JSON that keeps to a schema."""

from __future__ import annotations

import json
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from fractions import Fraction
from functools import cache
from pathlib import Path

from inference.grammar import is_whole
from inference.sampling import Grammar, GrammarKind
from outrider.bench.sets import ANSWER, Item

LONGEST_WAIT = 120.0
"""Seconds after which code is given up that has not used up its processor time: it waits."""

_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?")
_BLOCK = re.compile(r"```[^\n]*\n(.*?)(?:```|\Z)", re.DOTALL)
_FRACTION = re.compile(r"\\[dt]?frac\{([^{}]+)\}\{([^{}]+)\}")
_WORDS = re.compile(r"\\text\{([^{}]*)\}")
_PACKING = re.compile(r"\\left|\\right|\\[!,; $%]|[\s$%]|\^\\circ")


def score(item: Item, text: str, run_code: bool = False) -> bool | None:
    """Return whether an answer is right; None where it cannot be scored.

    run_code: whether code that the model wrote may be run
    """
    if item.tests is not None:
        return _passes(item.tests, _block(text)) if run_code else None
    if item.schema is not None:
        return _keeps_to(item.schema, text)
    return None if item.answer is None else _is_answer(item.answer, text)


def bounds_missing() -> str:
    """Return what code that is run may do on this machine beyond computing; "" for nothing."""
    free = {
        "use the network and reach other processes, for want of unshare": not _alone(),
        "change and remove files, for want of Landlock": _passes(ANSWER, "open('new', 'w')"),
    }
    return ", and ".join(name for name, may in free.items() if may)


def _is_answer(answer: str, text: str) -> bool:
    """Compare with what the last box holds, else the number behind ####, else the last number."""
    _, hashes, behind = text.rpartition("####")
    numbers = _NUMBER.findall(behind)
    number = "" if not numbers else numbers[0] if hashes else numbers[-1]
    boxed = _last_box(text)
    return _value(number if boxed is None else boxed) == _value(answer)


def _last_box(text: str) -> str | None:
    r"""Return what stands in the last \boxed{} of a text, braces within included."""
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
    try:
        return Fraction(re.sub(r",(?=\d{3}(?!\d))", "", plain))
    except (ValueError, ZeroDivisionError):
        return plain


def _keeps_to(schema: str, text: str) -> bool:
    """Compare with the schema as a grammar: properties stand in its order."""
    try:
        line = json.dumps(json.loads(_block(text)), ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return False
    return is_whole(Grammar(GrammarKind.JSON_SCHEMA, schema), line)


def _block(text: str) -> str:
    """Return the first fenced block of an answer, or all of it where it has none."""
    block = _BLOCK.search(text)
    return block[1] if block else text


def _passes(tests: str, code: str) -> bool | None:
    """Run the tests on code. None where they neither end nor use up their processor time."""
    word = secrets.token_hex(16)
    sandbox = [sys.executable, "-I", str(Path(__file__).with_name("sandbox.py"))]
    program = f"{word}\n{tests.replace(ANSWER, code, 1)}"
    with tempfile.TemporaryDirectory() as directory:
        try:
            done = subprocess.run(  # noqa: S603 (our own script, by this Python)
                [*_alone(), *sandbox],
                input=program.encode(errors="replace"),
                capture_output=True,
                timeout=LONGEST_WAIT,
                cwd=directory,
                env={"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None
    return done.stdout.decode().strip() == word


@cache
def _alone() -> tuple[str, ...]:
    """Return the command that runs another without network and other processes; () without it."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return ()
    command = (unshare, "--user", "--map-root-user", "--net", "--ipc", "--pid", "--kill-child")
    done = subprocess.run([*command, "true"], capture_output=True, check=False)  # noqa: S603
    return () if done.returncode else command
