"""Sessions that a target holds, also while no stream is connected to them; each has one stream at a time."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from grpc_comm.digest import PrefixDigest
from grpc_comm.observer import Ending, ServiceObserver
from inference.drafters.pool import DraftPool
from inference.engine import Engine
from inference.errors import Busy, Gone, InvalidRequest, Mismatch
from inference.session import Answer, Session
from inference.tree import TokenTree

LEASE_SECONDS = 15.0
"""A stream that says nothing for so long has ended; a session without a stream is held for so long."""


class Asked(NamedTuple):
    """The last round: what was asked, and its answer, now or later."""

    number: int
    base_length: int
    tree: TokenTree
    answer: asyncio.Future[Answer]

    def is_again(self, number: int, base_length: int, tree: TokenTree) -> bool:
        same = (
            self.number == number
            and self.base_length == base_length
            and len(self.tree) == len(tree)
        )
        return same and bool(
            (self.tree.tokens == tree.tokens).all() and (self.tree.parents == tree.parents).all()
        )


class Held:
    """One session and who speaks for it."""

    def __init__(
        self,
        session_id: str,
        tenant: str,
        engine: Engine,
        session: Session,
        drafts: DraftPool | None,
    ) -> None:
        self.session_id, self.tenant, self.engine, self.session, self.drafts = (
            session_id,
            tenant,
            engine,
            session,
            drafts,
        )
        self.resume_key = secrets.token_bytes(16)
        self.epoch = 0
        self.rounds = 0
        self.last: Asked | None = None
        self.generating: asyncio.Future[None] | None = None
        self.left = threading.Event()  # nobody reads what is being generated
        self.superseded = asyncio.Event()  # of the stream that has the session now
        self.expires: float | None = None  # when it ends unless a stream comes; None: one is there
        self._digest = PrefixDigest()

    @property
    def name(self) -> tuple[str, str]:
        """Ids are the clients' choice: another tenant's may be the same."""
        return self.tenant, self.session_id

    def detach(self) -> None:
        """Nobody is there: what is being generated ends with the round in hand."""
        self.left.set()
        self.engine.detach(self.session)

    def digest(self, length: int) -> int:
        """Of the first `length` committed tokens."""
        return self._digest.of(self.session.tokens[:length])


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

    def check_room(self, tenant: str, most: int | None, besides: int) -> None:
        """Raises Busy unless a tenant that may have `most` sessions, and has `besides` that are not held here, can open one."""
        self.expire()
        if len(self._held) >= self._most:
            raise Busy(
                f"the target holds {len(self._held)} sessions and takes no more; try again later",
                retry_after=self.lease_seconds,
            )
        mine = [held for held in self._held.values() if held.tenant == tenant]
        if most is None or len(mine) + besides < most:
            return
        leaving = [held for held in mine if held.expires is not None]
        if not leaving:
            raise Busy(
                f"this key may have {most} sessions, and has: close one, or try again later",
                retry_after=self.lease_seconds,
            )
        self.end(leaving[0], Ending.DISPLACED)

    def add(self, held: Held) -> None:
        self._held[held.name] = held

    def resume(self, session_id: str, key: bytes, epoch: int, tenant: str) -> Held:
        """The session, which hears from its stream of before no more. Raises Gone when it is not held, or not this caller's."""
        self.expire()
        held = self._held.get((tenant, session_id))
        if held is None or not hmac.compare_digest(held.resume_key, key):
            raise Gone("this session is not held here: open it anew")
        if epoch <= held.epoch:
            raise Mismatch(
                f"epoch {epoch} is over: another stream resumed this session with epoch {held.epoch}"
            )
        held.superseded.set()
        held.epoch, held.superseded, held.expires = epoch, asyncio.Event(), None
        held.detach()  # the stream before may not know yet that it is broken: what it generates ends
        held.engine.attach(held.session)
        self._observer.resumed(held.session)
        return held

    def leave(self, held: Held) -> None:
        """Its stream is gone: the session waits for another, and lends its row meanwhile."""
        if self._held.get(held.name) is held:
            held.expires = self._clock() + self.lease_seconds
            held.detach()
            self._observer.session_lost(held.session)

    def end(self, held: Held, reason: Ending) -> None:
        """The session is over. Idempotent."""
        if self._held.get(held.name) is not held:
            return
        del self._held[held.name]
        held.engine.close(held.session)
        held.superseded.set()
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
