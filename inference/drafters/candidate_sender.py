"""Chooses the nodes to send. Pure: no model, no clock.

A node is sent once, with its unsent ancestors, when its value is above the floor. One that comes
after the target has passed its position is dropped there, and costs its bytes alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from inference.drafters.draft_tree import DraftNode, DraftTree
from inference.proposer import BASE, Notice, Proposal

_ROUNDING = 1e-9  # tolerance for logarithms


class CandidateSender:
    """The unsent nodes of one text."""

    def __init__(self, tree: DraftTree) -> None:
        self._tree = tree

    def hear(self, notice: Notice) -> None:
        """Send everything again where some that had arrived are not there."""
        if notice.held < sum(number < notice.known for number in self._tree.sent):
            self.recall()

    def recall(self) -> None:
        """Forget all numbers: everything that was sent is lost."""
        self._tree.recall()

    def take(self, least: float, most: int, next_number: Callable[[], int]) -> list[Proposal]:
        """Return the proposals to send now: unsent nodes of at least the value `least`.

        most: nodes that the target may hold of all that were sent
        """
        tree = self._tree
        if len(tree.sent) >= most:
            return []
        proposals = list[Proposal]()
        waiting = tree.unsent.take(tree.log_of(least) - _ROUNDING)
        for index, node in enumerate(waiting):
            if node.number is not None:
                continue  # it was sent as the ancestor of another node
            line = self._unsent_line(node)
            if len(tree.sent) + len(line) > most:
                for one in waiting[index:]:
                    tree.unsent.add(one)
                break
            proposals += [self._send(one, next_number()) for one in line]
        return proposals

    def _unsent_line(self, node: DraftNode) -> list[DraftNode]:
        """Return the node and its unsent ancestors, ancestors first."""
        line = [node]
        while (above := line[-1].parent) is not self._tree.root:
            if above is None or above.number is not None:
                break
            line.append(above)
        return line[::-1]

    def _send(self, node: DraftNode, number: int) -> Proposal:
        above = node.parent
        assert above is not None, "the root is not sent"
        node.number = number
        self._tree.sent[number] = node
        parent = BASE if above is self._tree.root or above.number is None else above.number
        return Proposal(number, parent, node.token, math.exp(node.log - above.log))
