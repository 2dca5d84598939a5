"""What a text may still cost when its target is lost and another goes on: a limit on spending holds
over all of them. Pure.
"""

from __future__ import annotations

from dataclasses import replace

from grpc_comm.client.received import Received
from inference.engine.session import LEAST_CREDIT
from inference.order import Decode, Pace


class Spending:
    """An order, and the nodes that were paid for without our hearing of them.

    A target that is lost may have gone on as far as its credit goes: all of that counts as spent,
    unless the session is found again.
    """

    def __init__(self, received: Received, order: Decode | None = None) -> None:
        self._received = received
        self._unseen = self._in_doubt = 0
        if order is not None and order.most_nodes and not order.credit:
            order = replace(order, credit=LEAST_CREDIT)  # so that little can be spent unseen
        self.order = order

    @property
    def limited(self) -> bool:
        return self.order is not None and self.order.most_nodes > 0

    @property
    def spent(self) -> bool:
        """Nothing is left for another session."""
        return self.limited and self._left <= 0

    @property
    def here(self) -> Decode | None:
        """What is asked of the session that is under way: less what others have computed."""
        if self.order is None or not self.limited:
            return self.order
        left = self._left + self._in_doubt + self._received.session.nodes
        return replace(self.order, most_nodes=max(left, 1))

    def lost(self, acknowledged: int, tree_nodes: int) -> None:
        """The session may have gone on to what its credit allows beyond the acknowledged length;
        each forward, of at most `tree_nodes` nodes, brings a token.
        """
        if self.order is not None and self.limited:
            order, length = self.order, len(self._received.tokens)
            ahead = max(min(acknowledged + order.credit, order.end) - length, 0)
            forwards = min(ahead, 1) if order.pace is Pace.WAIT else ahead
            self._in_doubt = min(forwards * tree_nodes, max(self._left, 0))

    def found(self) -> None:
        """The session tells itself what it has computed."""
        self._in_doubt = 0

    def given_up(self) -> None:
        """Another session goes on."""
        self._unseen, self._in_doubt = self._unseen + self._in_doubt, 0

    @property
    def _left(self) -> int:
        assert self.order is not None
        seen = self._received.last.nodes
        return self.order.most_nodes - seen - self._unseen - self._in_doubt
