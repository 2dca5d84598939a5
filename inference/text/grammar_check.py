"""Compiles grammars in a separate process, which is killed if compilation takes too long, before
any other process compiles them: llguidance's compiler cannot be interrupted, and may take hours.

The process reads a JSON string per line, and writes the reason why the grammar cannot be compiled,
or an empty string.
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
"""Maximum processor time of a compilation, and maximum memory of the process."""

LIMITED = sys.platform == "linux"
"""Whether the system supports both limits. Otherwise only MAX_WAIT applies."""

MAX_WAIT = 60.0
"""Wall-clock seconds after which a check is abandoned, even on a busy machine."""

REUSABLE_BYTES = CHECK_BYTES // 2
"""Memory above which a process is replaced after a check."""

LIMITS = LLParserLimits(
    step_lexer_fuel=50_000,
    step_max_items=10_000,
    max_lexer_states=20_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)
"""Limits on work and memory for each mask and each text. A lexer state takes 1 to 2 kB."""


def begin(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """Return a matcher at the start of a text. Check its is_error()."""
    return LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)


def error_of(matcher: LLMatcher) -> str:
    """Return a matcher's error on a single line."""
    line, *details = matcher.get_error().splitlines() or ["no reason was given"]
    if line.startswith("NoExtension"):
        return "no token may follow, and no text is complete"
    if details and line.endswith("regex parse error:"):
        reason = next((detail for detail in details if detail.startswith("error: ")), "")
        line = f"pattern {details[0].strip()}: {reason.removeprefix('error: ')}"
    return "".join(letter if letter.isprintable() else "?" for letter in line[:200])


def check(grammar: str) -> str | None:
    """Return why a grammar cannot be compiled; "" if it can be, None if the check timed out."""
    try:
        checker = _idle.pop()
    except IndexError:
        checker = _Checker()
    if not checker.alive:
        checker = _Checker()
    reason = checker.check(grammar)
    if checker.alive and not _idle:
        _idle.append(checker)
    else:
        checker.end()
    return reason


class _Checker:
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
        """Check a grammar, see check() above. The process ends if the grammar exceeds a limit."""
        process, late = self._process, threading.Event()
        assert process.stdin is not None
        assert process.stdout is not None

        def give_up() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(MAX_WAIT, give_up)
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
            reason, reusable = json.loads(line)
            if not reusable:
                self.end()
            return str(reason)
        process.wait()
        if late.is_set():
            return None if LIMITED else f"it takes longer than {MAX_WAIT:.0f} s"
        return f"it takes more than {CHECK_SECONDS} s or {CHECK_BYTES >> 20} MiB"

    def end(self) -> None:
        """Kill the process. Idempotent."""
        self._process.kill()
        self._process.communicate()


_idle: list[_Checker] = []
"""The idle process, at most one, that checks the next grammar."""


def _end_idle() -> None:
    while _idle:
        _idle.pop().end()


atexit.register(_end_idle)
if hasattr(os, "register_at_fork"):  # a forked child must not share the parent's process
    os.register_at_fork(after_in_child=_idle.clear)


class _Bytes:
    """A tokenizer with a token for each byte, for the end of a text, and for everything else."""

    eos_token_id, bos_token_id = 256, None
    tokens: ClassVar[Sequence[bytes]] = [
        *(bytes([byte]) for byte in range(256)), b"<end>", b"<other>",
    ]  # fmt: skip
    special_token_ids: ClassVar[Sequence[int]] = [256, 257]

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def byte_tokenizer() -> LLTokenizer:
    """Return a tokenizer with a token per byte, to check grammars without a model."""
    from llguidance import TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(_Bytes()))


def main() -> None:
    _limit_process()
    tokenizer = byte_tokenizer()
    for line in sys.stdin:
        text = re.sub(r"<\[\d+\]>", "<[257]>", json.loads(line))  # tokens named by their ids
        _limit_seconds(CHECK_SECONDS)
        matcher = begin(tokenizer, text)
        reason = error_of(matcher) if matcher.is_error() else ""
        del matcher
        _limit_seconds(0)
        print(json.dumps([reason, _address_space() < REUSABLE_BYTES]), flush=True)


def _limit_process() -> None:
    if LIMITED:
        import resource

        os.nice(10)  # the target's forward passes take precedence
        for name, limit in (("AS", CHECK_BYTES), ("CORE", 0)):
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))


def _limit_seconds(seconds: float) -> None:
    """Set the processor time after which this process is killed; 0 for no limit."""
    if LIMITED:
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _address_space() -> int:
    """Return the bytes of this process that CHECK_BYTES limits."""
    if not LIMITED:
        return 0
    import resource

    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    main()
