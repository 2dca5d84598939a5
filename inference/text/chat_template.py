"""Renders chat templates, which come with a model and are untrusted, in jinja2's sandbox.

A template from a target is rendered in a separate process with limits on time and memory, which the
sandbox lacks. It is started in advance, so that no chat waits for an interpreter to start.
"""

from __future__ import annotations

import json
import subprocess
import sys
import weakref
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from threading import Lock
from traceback import extract_tb, walk_tb
from types import TracebackType
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

RENDER_SECONDS, RENDER_BYTES = 2, 2**29
"""Maximum processor time and memory of a rendering process."""

MAX_TEXT = 2**24
"""Maximum characters that a rendering process may return."""

_REFUSES = "the model's chat template refuses"

MAX_WAIT = 30.0
"""Wall-clock seconds after which a rendering process is killed, even on a busy machine."""


class _Generation(Extension):
    """Accepts the tags generation and endgeneration, which mark training text in templates."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own attribute)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        inside = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(inside, lineno=line)


@lru_cache(maxsize=8)
def _compiled(template: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_refuse, strftime_now=_now)
    return environment.from_string(template)


def _to_json(value: Any, ensure_ascii: bool = False, **how: Any) -> str:
    """Format a value as JSON. Unlike jinja2's own filter, this does not escape HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **how)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def render(template: str, variables: Mapping[str, Any]) -> str:
    """Render a template. Raises TemplateError for any exception, with the line in the template and
    the index of the message that the template was processing.
    """
    try:
        return _compiled(template).render(variables)
    except Exception as error:  # a template is a program, and may raise any exception
        lines = [
            frame.lineno
            for frame in extract_tb(error.__traceback__)
            if frame.filename == "<template>"
        ]
        line = getattr(error, "lineno", None) or (lines[-1] if lines else None)
        place = _message_at(error.__traceback__, variables) + (f" in line {line}" if line else "")
        reason = str(error) or type(error).__name__
        raise TemplateError(f"{_REFUSES}{place}: {reason}") from error


def _message_at(trace: TracebackType | None, variables: Mapping[str, Any]) -> str:
    """Return which message the template's innermost variables hold, as a suffix; "" if unclear."""
    at = {id(message): number for number, message in enumerate(variables.get("messages") or ())}
    numbers = set[int]()
    for frame, _ in walk_tb(trace):
        if frame.f_code.co_filename == "<template>":
            numbers = {at[id(value)] for value in frame.f_locals.values() if id(value) in at}
    return f" messages[{numbers.pop()}]" if len(numbers) == 1 else ""


class TemplateProcess:
    """Renders each template in a new process with limits. Thread-safe."""

    def __init__(self) -> None:
        self._lock, self._waiting = Lock(), _start()
        self._end = weakref.finalize(self, _close, self._waiting)

    def render(self, template: str, variables: Mapping[str, Any]) -> str:
        """Render a template. Raises TemplateError if rendering fails or exceeds the limits."""
        request = json.dumps({"template": template, "variables": variables}, default=str)
        with self._lock:
            process, self._waiting = self._waiting, _start()
            self._end.detach()
            self._end = weakref.finalize(self, _close, self._waiting)
        with process:
            try:
                output, _ = process.communicate(request.encode(), MAX_WAIT)
            except (subprocess.TimeoutExpired, BrokenPipeError):
                output = b""
            finally:
                process.kill()
        if not output:
            raise TemplateError(
                f"{_REFUSES}: it takes more than {RENDER_SECONDS} s, {RENDER_BYTES >> 20} MiB or "
                f"{MAX_TEXT:,} characters"
            )
        answer = json.loads(output)
        if "text" not in answer:
            raise TemplateError(answer["error"])
        return str(answer["text"])


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 (this file, by this Python)
        [sys.executable, "-P", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def _close(process: subprocess.Popen[bytes]) -> None:
    with process:
        process.kill()


def main() -> None:
    """Render the template on standard input, with limits if the system supports them."""
    content = sys.stdin.buffer.read()
    if not content:
        return
    if sys.platform == "linux":
        import resource

        limits = {"CPU": RENDER_SECONDS, "AS": RENDER_BYTES, "CORE": 0}
        for name, limit in limits.items():
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))
    request = json.loads(content)
    try:
        answer = {"text": render(request["template"], request["variables"])}
        if len(answer["text"]) > MAX_TEXT:
            return
    except TemplateError as error:
        if isinstance(error.__cause__, MemoryError):
            return
        answer = {"error": str(error)[:2000]}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
