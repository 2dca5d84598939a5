"""A target's log on stderr: one line for each event, as text or JSON.

It never contains a prompt, text, token or secret. An exception's message may quote a request, so
only its type and its traceback's places in the code are logged.
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
_log.addHandler(logging.NullHandler())  # a process without start_log() prints no events

_PACKAGES = ("inference", "grpc_comm", "outrider")


def start_log(form: str, level: str) -> None:
    """Write this process's log to stderr; replaces any earlier configuration.

    form: text or json
    level: a level's name in logging

    Other packages log warnings and errors only.
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
    """One line for an event: time, level, event, and its fields.

    form: json: an object; text: for people, without the fields that have no value
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
    """Writes to the current sys.stderr, which a live view replaces while it runs."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    """Return what is logged with the event: its fields, or the logger's name for foreign
    records.

    An exception adds its type and where it was raised.
    """
    fields: Mapping[str, Any] = getattr(record, "fields", {"logger": record.name})
    kind, _, trace = record.exc_info or (None, None, None)
    return fields if kind is None else {**fields, "exception": kind.__name__, "at": _places(trace)}


def _places(trace: TracebackType | None) -> list[str]:
    """Return file, line and function of each call, the innermost last."""
    return [
        f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(trace)
    ]
