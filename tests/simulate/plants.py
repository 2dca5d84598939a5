"""Planted faults: what a simulator has to find. Each is a patch of the product for one run."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from grpc_comm.client.call import Call
from grpc_comm.client.remote_session import RemoteSession
from grpc_comm.keys import Grant
from grpc_comm.server.sender import Sender
from grpc_comm.server.session_table import SessionRecord, SessionTable
from grpc_comm.server.stream import Stream
from inference.engine.admission import Admission
from inference.engine.session import Session

Plant = Callable[[], AbstractContextManager[Any]]


@contextmanager
def instead(holder: type, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Let a method be another one, which make() makes of it."""
    with patch.object(holder, name, make(vars(holder)[name])):
        yield


@contextmanager
def edited(holder: Any, name: str, before: str, after: str) -> Iterator[None]:
    """Let a function or a property be read from its source with other words in it."""
    kept = vars(holder)[name]
    function = kept.fget if isinstance(kept, property) else kept
    source, made = textwrap.dedent(inspect.getsource(function)), dict[str, Any]()
    assert source.count(before) == 1, f"{name} reads otherwise"
    text = "from __future__ import annotations\n" + source.replace(before, after)
    exec(text, function.__globals__, made)
    with patch.object(holder, name, made[name]):
        yield


def _late(start: Any) -> Any:
    return lambda self, record, length: start(self, record, length + (record.epoch > 0))


def _lossy(send: Any) -> Any:
    def sends(self: Call, **kind: Any) -> None:
        if "ack" not in kind or kind["ack"].length % 5:
            send(self, **kind)

    return sends


def _expiring(give: Any) -> Any:
    def gives(self: SessionRecord, epoch: int) -> None:
        expires = self.expires
        give(self, epoch)
        self.expires = expires

    return gives


def _generous(allowed: property) -> property:
    def allows(self: Session) -> int:
        found: int = allowed.__get__(self)
        return found + 1 if found and self.order is not None and self.order.credit else found

    return property(allows)


def _believing(give: Any) -> Any:
    def gives(self: SessionRecord, epoch: int) -> None:
        before = self.epoch
        give(self, epoch)
        self.epoch = before

    return gives


def _keeping(remove_closed: Any) -> Any:
    def removes(self: Admission) -> Any:
        kept = [one for one in self.sessions if one.closed and one.row and one.order is not None]
        for session in kept:
            del self._sessions[session]
        return remove_closed(self)

    return removes


PLANTS: dict[str, Plant] = {
    "resume one token late": lambda: instead(Stream, "_start", _late),
    "an ack lost": lambda: instead(Call, "send", _lossy),
    "a lease not renewed": lambda: instead(SessionRecord, "give_to_new_stream", _expiring),
    "credit off by one": lambda: instead(Session, "allowed", _generous),
    "a stale stream believed": lambda: instead(SessionRecord, "give_to_new_stream", _believing),
    "a cancelled session's row kept": lambda: instead(Admission, "remove_closed", _keeping),
    "an expired session's end not told": lambda: edited(
        SessionTable,
        "expire",
        "self.end(record, Ending.EXPIRED)",
        "self._records.pop(record.name), record.close(), self._counts.subtract([record.tenant])",
    ),
    "a resume key not compared": lambda: edited(
        SessionTable, "resume", "not hmac.compare_digest(record.resume_key, key)", "False"
    ),
    "detached sessions not counted": lambda: edited(
        SessionTable, "check_room", "len(mine) < most", "sum(not r.expires for r in mine) < most"
    ),
    "a revoked key's streams live on": lambda: edited(
        Grant, "withdrawn", "return self._withdrawn", "return False"
    ),
    "drained before the end": lambda: edited(
        Session, "_ended", "is None:", "is None or self._drained:"
    ),
    "signs of life of a hung target": lambda: edited(
        Sender, "_send_progress", "self._engine.step_seconds < MOST_STEP_SECONDS", "True"
    ),
    "tokens made before not told": lambda: edited(
        RemoteSession, "_opening", "self._params.made + self._received.made", "self._params.made"
    ),
    "rows for who has most": lambda: edited(
        Admission, "line", "rows[session.tenant]", "-rows[session.tenant]"
    ),
}
"""By name. `python -m tests.simulate --planted NAME` runs with one."""
