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
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
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


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, event, and the fields of the event's record."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(
            {
                "time": _time(record),
                "level": record.levelname.lower(),
                "event": record.getMessage(),
                **_fields(record),
            },
            default=str,
        )


class TextFormatter(logging.Formatter):
    """One line for people: time, level, event, and the fields that have a value."""

    def format(self, record: logging.LogRecord) -> str:
        fields = [
            f"{name}={value}"
            for name, value in _fields(record).items()
            if value not in (None, "", [])
        ]
        line = " ".join([_time(record), f"{record.levelname:<7}", record.getMessage(), *fields])
        return line.replace("\n", " ")


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


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
