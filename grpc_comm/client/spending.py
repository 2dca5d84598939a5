"""What a text may still spend when its target is lost and another goes on. Pure.

A limit on spending holds over all targets together.
"""

from __future__ import annotations

from dataclasses import replace

from grpc_comm.client.received import Received
from inference.order import LEAST_CREDIT, Decode, Pace


class Spending:
    """An order, and nodes that may have been paid for without our hearing of them.

    A lost target may have gone on as far as its credit goes. All of that counts as spent, unless
    the session is found again.
    """

    def __init__(self, received: Received, order: Decode | None = None) -> None:
        self._received = received
        self._unseen = self._in_doubt = 0
        if order is not None and order.most_nodes and not order.credit:
            order = replace(order, credit=LEAST_CREDIT)  # little credit: little can be spent unseen
        self.order = order

    @property
    def limited(self) -> bool:
        return self.order is not None and self.order.most_nodes > 0

    @property
    def spent(self) -> bool:
        """Whether nothing is left for another session."""
        return self.limited and self._left <= 0

    @property
    def here(self) -> Decode | None:
        """The order for the present session: less what other sessions have computed."""
        if self.order is None or not self.limited:
            return self.order
        left = self._left + self._in_doubt + self._received.session.nodes
        return replace(self.order, most_nodes=max(left, 1))

    def lost(self, acknowledged: int, tree_nodes: int) -> None:
        """Count what a lost session may have computed beyond the acknowledged length.

        That is as many tokens as its credit allows; each takes a forward of at most `tree_nodes`
        nodes.
        """
        if self.order is not None and self.limited:
            order, length = self.order, len(self._received.tokens)
            ahead = max(min(acknowledged + order.credit, order.end) - length, 0)
            forwards = min(ahead, 1) if order.pace is Pace.WAIT else ahead
            self._in_doubt = min(forwards * tree_nodes, max(self._left, 0))

    def found(self) -> None:
        """Count nothing extra: the session was found and tells what it has computed."""
        self._in_doubt = 0

    def given_up(self) -> None:
        """Keep the doubtful nodes as spent: another session goes on."""
        self._unseen, self._in_doubt = self._unseen + self._in_doubt, 0

    @property
    def _left(self) -> int:
        assert self.order is not None
        seen = self._received.last.nodes
        return self.order.most_nodes - seen - self._unseen - self._in_doubt
