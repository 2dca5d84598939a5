"""Sessions that a target holds, also while no stream is connected to them; each has one stream
at a time.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from grpc_comm.observer import Ending, ServiceObserver
from inference.engine.engine import Engine
from inference.engine.session import Session
from inference.errors import Busy, Gone, InvalidRequest, Mismatch

LEASE_SECONDS = 15.0
"""A stream that says nothing for so long has ended; a session without a stream is held for so
long.
"""


MOST_GUESTS = 4
"""Streams that are attached to a session at once."""


class Held:
    """One session and who speaks for it.

    stream: of the proposals of the client whose session it is.
    """

    def __init__(self, session_id: str, tenant: str, engine: Engine, session: Session) -> None:
        self.session_id, self.tenant = session_id, tenant
        self.engine, self.session = engine, session
        self.resume_key, self.append_key = secrets.token_bytes(16), secrets.token_bytes(16)
        self.epoch, self.stream = 0, engine.join(session)
        self.superseded = asyncio.Event()  # of the stream that has the session now
        self.expires: float | None = None  # when it ends unless a stream comes; None: one is there
        self._guests: set[asyncio.Event] = set()

    @property
    def name(self) -> tuple[str, str]:
        """Ids are the clients' choice: another tenant's may be the same."""
        return self.tenant, self.session_id

    @contextmanager
    def guest(self) -> Iterator[asyncio.Event]:
        """A stream is attached; the event is set when it has to leave. Raises Busy when there are
        too many.
        """
        if len(self._guests) >= MOST_GUESTS:
            raise Busy(f"{MOST_GUESTS} streams are attached to this session: that is the most")
        revoked = asyncio.Event()
        self._guests.add(revoked)
        try:
            yield revoked
        finally:
            self._guests.discard(revoked)

    def resumed(self, epoch: int) -> None:
        """Another stream has it. The ones before leave, and so do those that are attached."""
        self._revoke()
        self.append_key = secrets.token_bytes(16)
        self.epoch, self.superseded, self.expires = epoch, asyncio.Event(), None
        self.engine.leave(self.session, self.stream)
        self.stream = self.engine.join(self.session)
        self.engine.attach(self.session)

    def ended(self) -> None:
        """The session is over."""
        self.engine.close(self.session)
        self._revoke()

    def _revoke(self) -> None:
        self.superseded.set()
        for revoked in self._guests:
            revoked.set()


class Leases:
    """Every held session of a target, at most `most`. Called on its event loop."""

    def __init__(
        self,
        observer: ServiceObserver,
        most: int,
        lease_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lease_seconds, self._observer, self._most, self._clock = (
            lease_seconds,
            observer,
            most,
            clock,
        )
        self._held: dict[tuple[str, str], Held] = {}  # by tenant and session id
        self._counts: Counter[str] = Counter()  # by tenant

    def __len__(self) -> int:
        return len(self._held)

    def check_name(self, session_id: str, tenant: str) -> None:
        """Raises unless the tenant can open a session of this name."""
        if not 8 <= len(session_id) <= 64 or not session_id.isascii():
            raise InvalidRequest(
                f"a session id has 8 to 64 ASCII characters: got {len(session_id)}"
            )
        if (tenant, session_id) in self._held:
            raise Mismatch("a session of this id is held: Resume it, or choose another id")

    def check_room(self, tenant: str, most: int | None) -> None:
        """Raises Busy unless a tenant that may have `most` sessions can open one."""
        self.expire()
        if len(self._held) >= self._most:
            raise Busy(
                f"the target holds {len(self._held)} sessions and takes no more; try again later",
                retry_after=self.lease_seconds,
            )
        mine = [held for held in self._held.values() if held.tenant == tenant]
        if most is None or len(mine) < most:
            return
        leaving = [held for held in mine if held.expires is not None]
        if not leaving:
            raise Busy(
                f"this key may have {most} sessions, and has: close one, or try again later",
                retry_after=self.lease_seconds,
            )
        self.end(leaving[0], Ending.DISPLACED)

    def check_place(self, held: Held, most: int | None) -> None:
        """Raises Busy for a session beyond the `most` that its tenant may have: the oldest stay."""
        if most is None:
            return
        mine = [other for other in self._held.values() if other.tenant == held.tenant]
        if held in mine[most:]:
            words = f"this key may have {most} sessions now, and others are older"
            raise Busy(f"{words}: close one, or try again later", retry_after=self.lease_seconds)

    def add(self, held: Held) -> None:
        self._held[held.name] = held
        self._counts[held.tenant] += 1

    def count(self, tenant: str) -> int:
        """Sessions of this tenant."""
        return self._counts[tenant]

    def held_for(self, session_id: str, append_key: bytes, tenant: str) -> Held:
        """The session that this key lets append to. Raises Gone when there is none."""
        held = self._held.get((tenant, session_id))
        if held is None or not hmac.compare_digest(held.append_key, append_key):
            raise Gone("no session is held here that this key lets append to")
        return held

    def resume(self, session_id: str, key: bytes, epoch: int, tenant: str) -> Held:
        """The session, which hears from its stream of before no more. Raises Gone when it is not
        held, or not this caller's.
        """
        self.expire()
        held = self._held.get((tenant, session_id))
        if held is None or not hmac.compare_digest(held.resume_key, key):
            raise Gone("this session is not held here: open it anew")
        if epoch <= held.epoch:
            raise Mismatch(
                f"epoch {epoch} is over: another stream resumed this session with epoch "
                f"{held.epoch}"
            )
        held.resumed(epoch)
        self._observer.resumed(held.session)
        return held

    def leave(self, held: Held) -> None:
        """Its stream is gone: the session waits for another, and lends its row meanwhile."""
        if self._held.get(held.name) is held:
            held.expires = self._clock() + self.lease_seconds
            held.engine.detach(held.session)
            self._observer.session_lost(held.session)

    def end(self, held: Held, reason: Ending) -> None:
        """The session is over. Idempotent."""
        if self._held.get(held.name) is not held:
            return
        del self._held[held.name]
        self._counts[held.tenant] -= 1
        held.ended()
        self._observer.session_ended(held.session, reason)

    def end_all(self) -> None:
        for held in list(self._held.values()):
            self.end(held, Ending.DRAINED)

    def expire(self) -> None:
        """End sessions that were left for longer than their lease."""
        now = self._clock()
        for held in [
            held for held in self._held.values() if held.expires is not None and held.expires <= now
        ]:
            self.end(held, Ending.EXPIRED)
