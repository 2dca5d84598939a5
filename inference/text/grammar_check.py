"""Compiles grammars in a separate process, which is killed if that takes too long.

llguidance bounds the work of its masks, but not all work of its compiler: multiples of a large
number, or many patterns that the same text has to match, take it hours. It cannot be interrupted.
So a grammar is compiled here before any other process compiles it.

The process waits for the next grammar. It reads a grammar on each line of its input, as a JSON
string, and writes why it cannot be compiled: an empty string if it can.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

CHECK_SECONDS, CHECK_BYTES = 2, 2**30
"""Processor time that compiling may take, and memory of the process."""

LIMITED = sys.platform == "linux"
"""Whether the system supports both bounds. Elsewhere only LONGEST_WAIT bounds a check."""

LONGEST_WAIT = 60.0
"""Seconds after which a check is abandoned on a busy machine."""

REUSABLE_BYTES = CHECK_BYTES // 2
"""Memory above which a process checks no further grammar."""

LIMITS = LLParserLimits(
    step_lexer_fuel=50_000,
    step_max_items=10_000,
    max_lexer_states=20_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)
"""Work and memory of one mask, and of one text. Each state takes 1 to 2 kB."""


def begin(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """Return a grammar's state before the first token; see its is_error()."""
    return LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)


def error_of(matcher: LLMatcher) -> str:
    """Return a matcher's error, on a single line."""
    line, *more = matcher.get_error().splitlines() or ["no reason was given"]
    if line.startswith("NoExtension"):
        return "no token may follow, and no text is complete"
    if more and line.endswith("regex parse error:"):
        reason = next((one for one in more if one.startswith("error: ")), "")
        line = f"pattern {more[0].strip()}: {reason.removeprefix('error: ')}"
    return "".join(letter if letter.isprintable() else "?" for letter in line[:200])


def check(grammar: str) -> str | None:
    """Return why a grammar cannot be compiled; "" if it can, None if the check took too long."""
    try:
        checker = _idle.pop()
    except IndexError:
        checker = _Checker()
    if not checker.alive:
        checker = _Checker()
    said = checker.check(grammar)
    if checker.alive and not _idle:
        _idle.append(checker)
    else:
        checker.end()
    return said


class _Checker:
    """A process that checks grammars, one at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(  # noqa: S603 (this file, by this Python)
            [sys.executable, "-P", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C at a terminal must not reach it
            text=True,
        )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def check(self, grammar: str) -> str | None:
        """See check(). The process has ended afterwards if the grammar exceeded a bound."""
        process, late = self._process, threading.Event()
        assert process.stdin is not None
        assert process.stdout is not None

        def give_up() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(LONGEST_WAIT, give_up)
        timer.start()
        try:
            process.stdin.write(f"{json.dumps(grammar)}\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if line:
            said, reusable = json.loads(line)
            if not reusable:
                self.end()
            return str(said)
        process.wait()
        if late.is_set():
            return None if LIMITED else f"it takes longer than {LONGEST_WAIT:.0f} s"
        return f"it takes more than {CHECK_SECONDS} s or {CHECK_BYTES >> 20} MiB"

    def end(self) -> None:
        """Kill the process. Idempotent."""
        self._process.kill()
        self._process.communicate()


_idle: list[_Checker] = []
"""The process that waits for the next grammar, if there is one."""


def _end_idle() -> None:
    while _idle:
        _idle.pop().end()


atexit.register(_end_idle)
if hasattr(os, "register_at_fork"):  # a child would read the parent's answers
    os.register_at_fork(after_in_child=_idle.clear)


class _Bytes:
    """A tokenizer whose tokens are the bytes, the end of a text, and a token for all others."""

    eos_token_id, bos_token_id = 256, None
    tokens: ClassVar[Sequence[bytes]] = [
        *(bytes([byte]) for byte in range(256)), b"<end>", b"<other>",
    ]  # fmt: skip
    special_token_ids: ClassVar[Sequence[int]] = [256, 257]

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def byte_tokenizer() -> LLTokenizer:
    """A tokenizer whose ids are bytes, for grammars without a model."""
    from llguidance import TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(_Bytes()))


def main() -> None:
    _limit_process()
    tokenizer = byte_tokenizer()
    for line in sys.stdin:
        text = re.sub(r"<\[\d+\]>", "<[257]>", json.loads(line))  # tokens named by their ids
        _limit_seconds(CHECK_SECONDS)
        matcher = begin(tokenizer, text)
        said = error_of(matcher) if matcher.is_error() else ""
        del matcher
        _limit_seconds(0)
        print(json.dumps([said, _address_space() < REUSABLE_BYTES]), flush=True)


def _limit_process() -> None:
    if LIMITED:
        import resource

        os.nice(10)  # a target's own forward passes come first
        for name, limit in (("AS", CHECK_BYTES), ("CORE", 0)):
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))


def _limit_seconds(seconds: float) -> None:
    """Let this process use so much processor time until it is killed. 0: no limit."""
    if LIMITED:
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _address_space() -> int:
    """Return the bytes of this process that CHECK_BYTES bounds."""
    if not LIMITED:
        return 0
    import resource

    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    main()
