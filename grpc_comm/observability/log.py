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

from grpc_comm.observability.server_events import (
    CallRejected,
    Draining,
    Ending,
    Event,
    ModelServed,
    OfModel,
    SessionEnded,
    SessionOpened,
    SessionResumed,
    StreamLost,
)
from grpc_comm.observability.session_record import SessionRecord, SessionRecords
from inference.engine.events import Evicted
from inference.engine.session import Session

log = logging.getLogger(__name__)

_ROOMS = ("inference", "grpc_comm", "outrider")


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
    for room in _ROOMS:
        logging.getLogger(room).setLevel(level.upper())


class EventLog:
    """A Listener that logs events of sessions, callers and the target."""

    def __init__(self, records: SessionRecords) -> None:
        self._record = records.of

    def __call__(self, event: Event) -> None:
        match event:
            case ModelServed(_, description):
                names = ("model", "device", "dtype", "rows", "sequence_length", "max_tree_nodes")
                _say("model served", {name: getattr(description, name) for name in names})
            case SessionOpened(session):
                _say("session opened", _opened(self._record(session), session))
            case StreamLost(session):
                _say("stream lost", _who(self._record(session)))
            case SessionResumed(session):
                _say("session resumed", _who(self._record(session)))
            case SessionEnded(session, reason):
                _say("session ended", _ended(self._record(session), session, reason))
            case OfModel(_, Evicted(session)):
                who = _who(self._record(session))
                _say("row lent to another", {**who, "length": session.length})
            case CallRejected(code, tenant):
                _say("call rejected", {"code": code, "tenant": tenant}, logging.WARNING)
            case Draining():
                _say("draining", {})


def _opened(record: SessionRecord, session: Session) -> dict[str, Any]:
    return {
        **_who(record),
        "model": record.model,
        "prompt_tokens": session.prompt_length,
        "reused_tokens": record.opened.reused_tokens,
        "queue_seconds": _round(record.opened.queue_seconds),
        "prefill_seconds": _round(record.opened.prefill_seconds),
    }


def _ended(record: SessionRecord, session: Session, reason: Ending) -> dict[str, Any]:
    spent = session.spent
    accepted = session.made - spent.forwards  # each pass adds a token of the target's own
    return {
        **_who(record),
        "reason": reason.value,
        "prompt_tokens": session.prompt_length,
        "tokens": session.made,
        "forwards": spent.forwards,
        "candidates": spent.candidates,
        "accepted": accepted,
        "acceptance_length": _round(1 + accepted / spent.drafted) if spent.drafted else None,
        "seconds": _round(record.seconds),
    }


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


def _say(event: str, fields: Mapping[str, Any], level: int = logging.INFO) -> None:
    log.log(level, event, extra={"fields": fields})


def _who(record: SessionRecord) -> dict[str, str]:
    return {"session": record.name, "tenant": record.tenant}


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


def _round(number: float) -> float:
    return round(number, 4)
