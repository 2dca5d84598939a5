"""A target to serve, the state that its streams share, and the limits of keys."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from grpc_comm.keys import Key, Keys
from grpc_comm.observability.metrics import Metrics
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.security import PLAINTEXT, SecurityOptions
from grpc_comm.server.model_registry import Catalogue, Served
from grpc_comm.server.rate_limit import NODES_PER_SECOND, Allowance
from grpc_comm.server.rule_turns import RuleTurns
from grpc_comm.server.session_table import LEASE_SECONDS, SessionTable
from grpc_comm.translate import Description
from grpc_comm.transport import Address
from inference.engine.engine import Engine
from inference.errors import Unavailable


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
        """End sessions whose lease has expired, even while there are no calls."""
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
