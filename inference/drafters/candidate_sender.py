"""Chooses the nodes to send. Pure: no model, no clock.

A node is sent once, with its unsent ancestors, when its value is above the floor. One that comes
after the target has passed its position is dropped there, and costs its bytes alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from inference.drafters.draft_tree import DraftNode, DraftTree
from inference.proposer import Nodes, Notice

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

    def take(self, least: float, most: int, first: int) -> list[DraftNode]:
        """Return the nodes to send now, numbered from `first` on: unsent ones of at least the value
        `least`.

        most: nodes that the target may hold of all that were sent
        """
        tree, taken = self._tree, list[DraftNode]()
        if len(tree.sent) >= most:
            return taken
        waiting = tree.unsent.take(tree.log_of(least) - _ROUNDING)
        for index, node in enumerate(waiting):
            if node.number is not None:
                continue  # it was sent as the ancestor of another node
            line = self._unsent_line(node)
            if len(tree.sent) + len(line) > most:
                for one in waiting[index:]:
                    tree.unsent.add(one)
                break
            tree.number(line, first + len(taken))
            taken += line
        return taken

    def _unsent_line(self, node: DraftNode) -> list[DraftNode]:
        """Return the node and its unsent ancestors, ancestors first."""
        line = [node]
        while (above := line[-1].parent) is not self._tree.root:
            if above is None or above.number is not None:
                break
            line.append(above)
        return line[::-1]


def message_of(tree: DraftTree, nodes: Sequence[DraftNode], proposer: int) -> Nodes:
    """Return the message that sends these nodes, whose numbers are consecutive."""
    numbers, parents, chances = list[int](), list[int](), list[float]()
    for node in nodes:
        above, number = node.parent, node.number
        assert above is not None, "the root is not sent"
        assert number is not None, "a node has its number before it is sent"
        numbers.append(number)
        parents.append(0 if above.number is None else number - above.number)
        chances.append(math.exp(node.log - above.log))
    tokens = [node.token for node in nodes]
    return Nodes(tree.root.position, numbers[0], parents, tokens, chances, proposer)
