"""Planted faults: what a simulator has to find. Each is a patch of the product for one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from grpc_comm.client.call import Call
from grpc_comm.server.session_table import SessionRecord
from grpc_comm.server.stream import Stream
from inference.engine.admission import Admission
from inference.engine.session import Session

Plant = Callable[[], AbstractContextManager[Any]]


@contextmanager
def instead(holder: type, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Let a method be another one, which make() makes of it."""
    with patch.object(holder, name, make(vars(holder)[name])):
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
}
"""By name. `python -m tests.simulate --planted NAME` runs with one."""
