"""The sessions of a target, each with at most one connected stream at a time."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections import Counter

from grpc_comm.observability.metrics import Ending
from grpc_comm.server.model_registry import RunningModel
from inference.engine.sessions.session import Session
from inference.errors import Busy, Gone, InvalidRequest, Mismatch

LEASE_SECONDS = 15.0
"""Seconds of silence after which a stream counts as ended, and seconds for which a session without
a stream is kept.
"""


class SessionRecord:
    """A session and its stream.

    stream: the current stream of proposals
    """

    def __init__(self, session_id: str, session: Session, model: RunningModel) -> None:
        self.session_id, self.tenant, self.session = session_id, session.tenant, session
        self.engine, self.observer = model.engine, model.observer
        self.observer.name_session(session, session_id)
        self.resume_key = secrets.token_bytes(16)
        self.epoch, self.stream = 0, self.engine.join(session)
        self.superseded = asyncio.Event()  # set when another stream takes over the session
        self.expires: float | None = None  # when the session ends; None while it has a stream

    @property
    def name(self) -> tuple[str, str]:
        """Tenant and session id. Clients choose the ids, so two tenants may use the same id."""
        return self.tenant, self.session_id

    def give_to_new_stream(self, epoch: int) -> None:
        """Assign the session to a new stream. Earlier streams end."""
        self.superseded.set()
        self.epoch, self.superseded, self.expires = epoch, asyncio.Event(), None
        self.engine.leave(self.session, self.stream)
        self.stream = self.engine.join(self.session)
        self.engine.attach(self.session)

    def close(self) -> None:
        """Mark the session as ended."""
        self.engine.close(self.session)
        self.superseded.set()


class SessionTable:
    """All sessions of a target, up to `limit`. Used on its event loop."""

    def __init__(self, limit: int, lease_seconds: float) -> None:
        self.lease_seconds, self._limit = lease_seconds, limit
        self._records: dict[tuple[str, str], SessionRecord] = {}  # by tenant and session id
        self._counts: Counter[str] = Counter()  # by tenant

    def __len__(self) -> int:
        return len(self._records)

    def check_name(self, session_id: str, tenant: str) -> None:
        """Raise InvalidRequest or Mismatch unless the tenant can open a session with this id."""
        if not 8 <= len(session_id) <= 64 or not session_id.isascii():
            raise InvalidRequest(
                f"a session id has 8 to 64 ASCII characters: got {len(session_id)}"
            )
        if (tenant, session_id) in self._records:
            raise Mismatch("a session with this id exists: Resume it, or choose another id")

    def check_room(self, tenant: str, limit: int | None) -> None:
        """Raise Busy unless a tenant can open a session. limit: maximum sessions of the tenant"""
        self.expire()
        if len(self._records) >= self._limit:
            raise Busy(
                f"the target has {len(self)} sessions and accepts no more; try again later",
                retry_after=self.lease_seconds,
            )
        mine = [record for record in self._records.values() if record.tenant == tenant]
        if limit is None or len(mine) < limit:
            return
        leaving = [record for record in mine if record.expires is not None]
        if not leaving:
            raise Busy(
                f"this key may have {limit} sessions at a time: close one, or try again later",
                retry_after=self.lease_seconds,
            )
        self.end(leaving[0], Ending.DISPLACED)

    def check_count(self, record: SessionRecord, limit: int | None) -> None:
        """Raise Busy if the session exceeds the `limit` of its tenant. The oldest sessions
        remain.
        """
        if limit is None:
            return
        mine = [peer for peer in self._records.values() if peer.tenant == record.tenant]
        if record in mine[limit:]:
            words = f"this key may have {limit} sessions now, and others are older"
            raise Busy(f"{words}: close one, or try again later", retry_after=self.lease_seconds)

    def add(self, record: SessionRecord) -> None:
        self._records[record.name] = record
        self._counts[record.tenant] += 1
        assert self._counts.total() == len(self), "a session was not counted"

    def count(self, tenant: str) -> int:
        """Return the number of this tenant's sessions."""
        return self._counts[tenant]

    def resume(self, session_id: str, key: bytes, epoch: int, tenant: str) -> SessionRecord:
        """Assign the session to a new stream; its earlier stream is ignored from then on.

        Raises Gone if there is no such session of this caller, and Mismatch for an old epoch.
        """
        self.expire()
        record = self._records.get((tenant, session_id))
        if record is None or not hmac.compare_digest(record.resume_key, key):
            raise Gone("this target has no such session: open it again")
        if epoch <= record.epoch:
            raise Mismatch(
                f"epoch {epoch} is over: another stream resumed this session with epoch "
                f"{record.epoch}"
            )
        record.give_to_new_stream(epoch)
        record.observer.record_resumed(record.session)
        return record

    def detach(self, record: SessionRecord) -> None:
        """Record that the session's stream is lost. The session waits for a new stream; its row may
        be lent to others.
        """
        if self._records.get(record.name) is record:
            record.expires = time.monotonic() + self.lease_seconds
            record.engine.detach(record.session)
            record.observer.record_lost(record.session)

    def end(self, record: SessionRecord, reason: Ending) -> None:
        """End the session. Idempotent."""
        if self._records.get(record.name) is not record:
            return
        del self._records[record.name]
        self._counts[record.tenant] -= 1
        record.close()
        record.observer.record_end(record.session, reason)

    def end_all(self) -> None:
        for record in list(self._records.values()):
            self.end(record, Ending.DRAINED)

    def expire(self) -> None:
        """End sessions that have had no stream for longer than their lease."""
        now = time.monotonic()
        for record in [
            record
            for record in self._records.values()
            if record.expires is not None and record.expires <= now
        ]:
            self.end(record, Ending.EXPIRED)
