"""A target's log on stderr: one line for each event, as text or JSON.

The log never contains a prompt, output, token or secret. The message of an exception may quote a
request, so only the exception's type and the code locations of its traceback are logged.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

_log = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())  # without start_log(), a process prints no events

_PACKAGES = ("inference", "grpc_comm", "outrider")


def start_log(form: str, level: str) -> None:
    """Write this process's log to stderr; replaces any earlier configuration.

    form: text or json
    level: name of a level in the module logging

    From other packages, only warnings and errors are logged.
    """
    handler = _StderrHandler()
    handler.setFormatter(_Formatter(form))
    logging.basicConfig(
        level=max(logging.WARNING, logging.getLevelName(level.upper())),
        handlers=[handler],
        force=True,
    )
    for package in _PACKAGES:
        logging.getLogger(package).setLevel(level.upper())


def log_event(event: str, level: int = logging.INFO, /, **fields: Any) -> None:
    """Log an event of the target, with its fields."""
    _log.log(level, event, extra={"fields": fields})


class _Formatter(logging.Formatter):
    """Formats an event as one line: time, level, event, and fields.

    form: json: an object; text: for people, without fields that have no value
    """

    def __init__(self, form: str) -> None:
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        level, event, fields = record.levelname, record.getMessage(), _fields(record)
        if self._form == "json":
            line = {"time": time, "level": level.lower(), "event": event, **fields}
            return json.dumps(line, default=str)
        shown = [f"{name}={value}" for name, value in fields.items() if value not in (None, "", [])]
        return " ".join([time, f"{level:<7}", event, *shown]).replace("\n", " ")


class _StderrHandler(logging.Handler):
    """Writes to the current sys.stderr, which a live view temporarily replaces."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    """Return the fields to log with a record: those of the event, or the logger's name for other
    packages.

    For an exception, its type and the code locations of its traceback are added.
    """
    fields: Mapping[str, Any] = getattr(record, "fields", {"logger": record.name})
    kind, _, trace = record.exc_info or (None, None, None)
    return fields if kind is None else {**fields, "exception": kind.__name__, "at": _places(trace)}


def _places(trace: TracebackType | None) -> list[str]:
    """Return file, line and function of each stack frame, the innermost last."""
    return [
        f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(trace)
    ]
