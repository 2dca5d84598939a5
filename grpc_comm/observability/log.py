"""A target's log: one line an event, as text or as JSON, on stderr. No prompt, no text, no token
and no secret is ever in it.

What an exception says may quote a request, so that of an exception only its type and the places in
the code are written.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Mapping
from datetime import datetime, timezone
from types import TracebackType
from typing import Any

from grpc_comm.ledger import Entry, Ledger
from grpc_comm.observer import Ending, ServiceObserver
from grpc_comm.translate import Description
from inference.engine.engine import Engine
from inference.engine.forward import Commit, Observer
from inference.engine.session import Opened, Session

log = logging.getLogger(__name__)

_ROOMS = ("inference", "grpc_comm", "outrider")


def start_log(form: str, level: str) -> None:
    """Write what this process logs to stderr, of other packages no more than warnings; form: text
    or json; level: a name of logging's.

    What was set up before is replaced.
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


class EventLog(ServiceObserver):
    """Logs what happens to sessions, callers and the target."""

    def __init__(self) -> None:
        self._ledger = Ledger()

    def engine(self, engine: Engine, description: Description) -> Observer:
        names = ("model", "device", "dtype", "rows", "sequence_length", "max_tree_nodes")
        _say("model served", {name: getattr(description, name) for name in names})
        return _EngineLog(description.model, self._ledger)

    def session_opened(self, session: Session, session_id: str, tenant: str) -> None:
        entry = self._ledger.entry(session)
        entry.session_id, entry.tenant = session_id, tenant
        counts = {
            "model": entry.model,
            "prompt_tokens": entry.prompt_tokens,
            "reused_tokens": entry.reused_tokens,
        }
        seconds = {
            "queue_seconds": _round(entry.queue_seconds),
            "prefill_seconds": _round(entry.prefill_seconds),
        }
        _say("session opened", {**_who(entry), **counts, **seconds})

    def session_lost(self, session: Session) -> None:
        _say("stream lost", _who(self._ledger.entry(session)))

    def resumed(self, session: Session) -> None:
        _say("session resumed", _who(self._ledger.entry(session)))

    def session_ended(self, session: Session, reason: Ending) -> None:
        entry = self._ledger.entry(session)
        counts = {
            name: getattr(entry, name)
            for name in ("prompt_tokens", "tokens", "forwards", "candidates", "accepted")
        }
        seconds = entry.last_at - entry.asked_at if entry.forwards else 0.0
        rates = {"acceptance_length": _round(entry.acceptance_length), "seconds": _round(seconds)}
        _say("session ended", {**_who(entry), "reason": reason.value, **counts, **rates})

    def rejected(self, code: str, tenant: str = "") -> None:
        _say("call rejected", {"code": code, "tenant": tenant}, logging.WARNING)

    def draining(self) -> None:
        _say("draining", {})


class _EngineLog(Observer):
    """What one engine tells."""

    def __init__(self, model: str, ledger: Ledger) -> None:
        self._model, self._ledger = model, ledger

    def opened(self, session: Session, opened: Opened) -> None:
        self._ledger.opened(self._model, session, opened)

    def committed(self, session: Session, commit: Commit) -> None:
        self._ledger.committed(session, commit)

    def evicted(self, session: Session) -> None:
        _say("row lent to another", {**_who(self._ledger.entry(session)), "length": session.length})


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, event, and what the event's record holds."""

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
    """The same for people: values that are not there are left out."""

    def format(self, record: logging.LogRecord) -> str:
        fields = [
            f"{name}={value}"
            for name, value in _fields(record).items()
            if value not in (None, "", [])
        ]
        line = " ".join([_time(record), f"{record.levelname:<7}", record.getMessage(), *fields])
        return line.replace("\n", " ")


class _StderrHandler(logging.Handler):
    """Writes to what sys.stderr is at the time: a live view puts itself there."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


def _say(event: str, fields: Mapping[str, Any], level: int = logging.INFO) -> None:
    log.log(level, event, extra={"fields": fields})


def _who(entry: Entry) -> dict[str, str]:
    return {"session": entry.name, "tenant": entry.tenant}


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    """Those of an event of ours; of anybody else's record, its logger; of an exception, its type
    and where it was raised.
    """
    fields: Mapping[str, Any] = getattr(record, "fields", {"logger": record.name})
    kind, _, trace = record.exc_info or (None, None, None)
    return fields if kind is None else {**fields, "exception": kind.__name__, "at": _places(trace)}


def _places(trace: TracebackType | None) -> list[str]:
    """File, line and function of each call, the innermost last."""
    return [
        f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(trace)
    ]


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")


def _round(number: float | None) -> float | None:
    return None if number is None else round(number, 4)
