"""A target to serve, the state that its streams share, and the limits of keys."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from grpc_comm.keys import Key, Keys
from grpc_comm.observability.metrics import Metrics
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.security import PLAINTEXT, SecurityOptions
from grpc_comm.server.model_registry import Catalogue, Served
from grpc_comm.server.session_table import LEASE_SECONDS, SessionTable
from grpc_comm.server.tasks import mark_retrieved
from grpc_comm.translate import Description
from grpc_comm.transport import Address
from inference.engine.engine import Engine
from inference.errors import Busy, Unavailable
from inference.token_rule import TokenRule

NODES_PER_SECOND, BYTES_PER_SECOND, MESSAGES_PER_SECOND = 8_000, 2**18, 1_000
"""Limits per second and session of a key. A fast draft sends about 2,000 nodes per second."""

BURST_SECONDS = 1.0
"""Burst size: unused rate accumulates for up to this many seconds."""


MakeRule = Callable[[], TokenRule | None]

CHECKS = 4
"""Maximum grammars checked concurrently, each of a different key."""

MAKERS = 32
"""Maximum rules built concurrently. Building is quick unless the grammar is large."""

RETRY_SECONDS = 1.0


class Allowance:
    """The token bucket of one key, shared by all streams of the key. Used on the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._at, self._owed = clock, clock(), 0.0

    def charge(self, nodes: float, size: int, share: float) -> float:
        """Return the seconds by which a message with `nodes` nodes and `size` bytes is too early.

        The message is charged only if the result is 0.

        share: the key's rate, as a multiple of the rate of one session
        """
        now = self._clock()
        self._owed = max(self._owed - (now - self._at) * share, 0.0)
        self._at = now
        cost = max(nodes / NODES_PER_SECOND, size / BYTES_PER_SECOND, 1 / MESSAGES_PER_SECOND)
        early = self._owed + cost - BURST_SECONDS * max(share, cost)
        if early > 0:
            return early / share
        self._owed += cost
        return 0.0


class RuleTurns:
    """Checks new grammars, one at a time for each key, and builds rules. Used on the event loop.

    Only grammars that were never checked wait for their key's turn. So a key that keeps sending new
    grammars occupies one thread, and delays neither checked grammars nor penalties and biases.
    """

    def __init__(self) -> None:
        self._checks = ThreadPoolExecutor(CHECKS, "grammar")
        self._makers = ThreadPoolExecutor(MAKERS, "rule")
        self._turns = defaultdict[str, asyncio.Lock](asyncio.Lock)  # by name of key
        self._waiting = Counter[str]()

    async def check(self, key: Key, check: Callable[[], None], limit: int) -> None:
        """Check a grammar once it is this key's turn.

        limit: maximum grammars of one key that wait or are being checked

        Raises Busy if the limit is reached, and any error of `check`.
        """
        waiting = self._waiting[key.name]
        if waiting >= limit:
            raise Busy(
                f"{waiting} new grammars of this key wait to be checked: try again later",
                RETRY_SECONDS,
            )
        self._waiting[key.name] += 1
        try:
            await self._in_turn(self._turns[key.name], check)
        finally:
            self._waiting[key.name] -= 1

    async def make(self, make: MakeRule) -> TokenRule | None:
        """Return the rule that `make` returns, on another thread. Raises any error of `make`."""
        return await asyncio.get_running_loop().run_in_executor(self._makers, make)

    async def _in_turn(self, turn: asyncio.Lock, check: Callable[[], None]) -> None:
        await turn.acquire()
        checking = asyncio.get_running_loop().run_in_executor(self._checks, check)
        checking.add_done_callback(lambda _: turn.release())
        checking.add_done_callback(mark_retrieved)
        await asyncio.shield(checking)  # the turn lasts even if the caller is cancelled

    def close(self) -> None:
        """Stop checking grammars and building rules."""
        for threads in (self._checks, self._makers):
            threads.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True)
class Target:
    """An engine to serve, with its address, security and limits."""

    engine: Engine
    description: Description
    address: Address
    security: SecurityOptions = PLAINTEXT
    listed: Mapping[str, Callable[[], Served]] = field(default_factory=dict)  # loaded on demand
    metrics: Metrics = field(default_factory=Metrics)
    share_prefixes: bool = False  # whether sessions may reuse cached prefixes of other keys
    lease_seconds: float = LEASE_SECONDS  # how long to keep a session without a stream


class ServerState:
    """The state that streams share, from begin() to end(). Used on the event loop only.

    draining: whether no new sessions are accepted
    rules: builds the rules of sessions
    """

    def __init__(self, target: Target, keys: Keys) -> None:
        self.keys, self.metrics = keys, target.metrics
        self.catalogue = Catalogue(
            Served(target.engine, target.description), target.listed, target.metrics
        )
        limit = 2 * target.engine.max_sessions * (1 + len(target.listed))
        self.sessions = SessionTable(limit, target.lease_seconds)
        self.draining, self.rules = False, RuleTurns()
        self._share_prefixes = target.share_prefixes
        self._allowances = defaultdict[str, Allowance](Allowance)  # by name of key
        self._tasks = list[asyncio.Task[None]]()

    def begin(self) -> None:
        """Start the tasks that end expired sessions and watch the keys file."""
        self._tasks = [
            asyncio.create_task(self._expire()),
            asyncio.create_task(self.keys.watch()),
        ]

    def stop_tasks(self) -> None:
        """Stop the tasks that begin() started. Idempotent."""
        for task in self._tasks:
            task.cancel()

    async def end(self) -> None:
        """End all sessions, and stop the models after their current forward pass."""
        self.stop_tasks()
        self.rules.close()
        self.sessions.end_all()
        await asyncio.to_thread(self.catalogue.stop)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(self.sessions.lease_seconds / 4)
            self.sessions.expire()

    def charge(self, key: Key, message: pb.ClientMessage) -> float:
        """Return the seconds by which a message exceeds its key's rate; 0 if it may be processed
        now.
        """
        share = max(self.sessions.count(key.name), 1)
        max_nodes = key.nodes_per_second or NODES_PER_SECOND * share
        nodes = len(message.nodes.tokens) * NODES_PER_SECOND * share / max_nodes
        return self._allowances[key.name].charge(nodes, message.ByteSize(), share)

    def limited(self, description: Description, key: Key) -> Description:
        """Return the description with this key's limits."""
        length = min(
            description.sequence_length, key.sequence_length or description.sequence_length
        )
        nodes = min(description.max_tree_nodes, key.tree_nodes or description.max_tree_nodes)
        return replace(description, sequence_length=length, max_tree_nodes=nodes)

    def prefix_tenant(self, key: Key) -> str:
        """Return the name under which prefixes are cached: a key's name, or "" if all share."""
        return "" if self._share_prefixes else key.name

    def check_draining(self) -> None:
        """Raise Unavailable if the target is draining."""
        if self.draining:
            raise Unavailable("this target is shutting down")

    def check_room(self, key: Key) -> None:
        """Raise Busy or Unavailable unless the key may open another session."""
        self.check_draining()
        self.sessions.check_room(key.name, key.sessions)
