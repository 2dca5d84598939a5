"""Compiles a grammar in a process of its own, which is ended where that takes too long.

llguidance bounds the work of its masks, but not all work of its compiling: numbers that are
multiples of a large one, or many patterns of which one text has to match all, take it hours. Nobody
can interrupt it. So a grammar is compiled here before any other process compiles it.

It reads a grammar from its input and writes why it cannot be compiled: nothing where it can.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import ClassVar

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

CHECK_SECONDS, CHECK_BYTES = 2, 2**30
"""Processor time that compiling may take, and memory of the process."""

LIMITED = sys.platform == "linux"
"""Whether both bounds hold. Elsewhere LONGEST_WAIT alone bounds a check."""

LONGEST_WAIT = 60.0
"""Seconds after which a check is given up on a busy machine."""

LIMITS = LLParserLimits(
    step_lexer_fuel=50_000,
    step_max_items=10_000,
    max_lexer_states=20_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)
"""Work and memory of one mask, and of one text. Each state takes 1 to 2 kB."""


def begin(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """Return a grammar's state before the first token. Its is_error() says whether there is one."""
    return LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)


def error_of(matcher: LLMatcher) -> str:
    """Return why a matcher is of no use any more, in one line."""
    line, *more = matcher.get_error().splitlines() or ["no reason was given"]
    if line.startswith("NoExtension"):
        return "no token may follow, and no text is complete"
    if more and line.endswith("regex parse error:"):
        reason = next((one for one in more if one.startswith("error: ")), "")
        line = f"pattern {more[0].strip()}: {reason.removeprefix('error: ')}"
    return "".join(letter if letter.isprintable() else "?" for letter in line[:200])


def check(grammar: str) -> str | None:
    """Return why a grammar cannot be compiled; "" where it can, None where a busy machine did not
    find out.
    """
    command = [sys.executable, "-P", __file__]
    try:
        done = subprocess.run(  # noqa: S603 (this file, by this Python)
            command, input=grammar.encode(), capture_output=True, timeout=LONGEST_WAIT, check=False
        )
    except subprocess.TimeoutExpired:
        return None if LIMITED else f"it takes longer than {LONGEST_WAIT:.0f} s"
    if done.returncode:
        return f"it takes more than {CHECK_SECONDS} s or {CHECK_BYTES >> 20} MiB"
    return done.stdout.decode()


class _Bytes:
    """A tokenizer whose tokens are the bytes, the end of a text, and one for all others."""

    eos_token_id, bos_token_id = 256, None
    tokens: ClassVar[Sequence[bytes]] = [
        *(bytes([byte]) for byte in range(256)), b"<end>", b"<other>",
    ]  # fmt: skip
    special_token_ids: ClassVar[Sequence[int]] = [256, 257]

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def byte_tokenizer() -> LLTokenizer:
    """A tokenizer whose ids are bytes, for grammars of which no model is needed."""
    from llguidance import TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(_Bytes()))


def main() -> None:
    if LIMITED:
        import resource

        os.nice(10)  # a target's own forwards come first
        limits = {"CPU": CHECK_SECONDS, "AS": CHECK_BYTES, "CORE": 0}
        for name, most in limits.items():
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))
    text = re.sub(r"<\[\d+\]>", "<[257]>", sys.stdin.read())  # tokens that are named by their ids
    matcher = begin(byte_tokenizer(), text)
    if matcher.is_error():
        sys.stdout.write(error_of(matcher))


if __name__ == "__main__":
    main()
