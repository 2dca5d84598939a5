"""State that all streams of a target share, and the limits of keys there."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from grpc_comm import messages
from grpc_comm.keys import Key
from grpc_comm.observability.server_events import Listener
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.server.model_registry import Catalogue
from grpc_comm.server.rate_limit import NODES_PER_SECOND, Allowance
from grpc_comm.server.rule_turns import RuleTurns
from grpc_comm.server.session_table import SessionTable
from grpc_comm.translate import Description
from inference.errors import Unavailable


class ServerState:
    """The state that streams share. Used on the event loop only.

    draining: no new sessions are accepted
    rules: builds the rules of sessions
    """

    def __init__(
        self, catalogue: Catalogue, sessions: SessionTable, emit: Listener, *, share_prefixes: bool
    ) -> None:
        self.catalogue, self.sessions, self.emit = catalogue, sessions, emit
        self.draining, self.rules = False, RuleTurns()
        self._share_prefixes = share_prefixes
        self._allowances = defaultdict[str, Allowance](Allowance)  # by the names of keys

    def charge(self, key: Key, message: pb.ClientMessage) -> float:
        """Return the seconds by which a message exceeds its key's rate; 0 where it may be
        processed.
        """
        share = max(self.sessions.count(key.name), 1)
        most_nodes = key.nodes_per_second or NODES_PER_SECOND * share
        nodes = messages.count_nodes(message) * NODES_PER_SECOND * share / most_nodes
        return self._allowances[key.name].charge(nodes, message.ByteSize(), share)

    def limited(self, description: Description, key: Key) -> Description:
        """Return the description with this key's limits."""
        length = min(
            description.sequence_length, key.sequence_length or description.sequence_length
        )
        nodes = min(description.max_tree_nodes, key.tree_nodes or description.max_tree_nodes)
        return replace(description, sequence_length=length, max_tree_nodes=nodes)

    def prefix_tenant(self, key: Key) -> str:
        """Return the name that tenants who share cached prefixes have in common."""
        return "" if self._share_prefixes else key.name

    def check_room(self, key: Key) -> None:
        """Raise Busy or Unavailable unless the key may open another session."""
        if self.draining:
            raise Unavailable("this target is shutting down")
        self.sessions.check_room(key.name, key.sessions)
