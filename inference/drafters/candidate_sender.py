"""Which nodes are sent, and when. Pure: no model, no clock.

A node is sent once, with its unsent ancestors. Its value must be above the floor. It must also
arrive before the target has passed its position.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from inference.candidates import BASE, Proposal
from inference.drafters.draft_tree import DraftNode, DraftTree
from inference.drafters.target_clock import AT_ROOT, TargetClock, Walk
from inference.proposer import Notice

_ROUNDING = 1e-9  # tolerance for logarithms


class CandidateSender:
    """The unsent nodes of one text, and the timetable that tells which of them arrive in time."""

    def __init__(self, nodes: DraftTree, times: TargetClock) -> None:
        self._list, self._times = nodes, times
        self._epoch = 0  # version of the timetable
        self._late: list[DraftNode] = []  # would arrive too late by the present timetable

    def heard(self, notice: Notice) -> None:
        """Look at late nodes again: the timetable has changed, so they may be in time."""
        self._epoch += 1
        for node in self._late:
            self._list.unsent.add(node)  # unless it died meanwhile
        self._late = []
        if notice.held < sum(number < notice.known for number in self._list.sent):
            self.resend()  # some that had arrived are not there

    def resend(self) -> None:
        """Forget all numbers: everything that was sent is lost."""
        self._times.forget()
        self._list.recall()

    def in_time(self, nodes: Sequence[DraftNode], arrives: float) -> list[DraftNode]:
        """Return the nodes whose children would arrive before the target has passed them, and the
        nodes above these, whose keys they need.

        nodes: each behind its parent
        arrives: seconds, when the children would arrive at the target
        """
        kept, needed = list[DraftNode](), set[DraftNode | None]()
        for node in reversed(nodes):
            if node in needed or not self._times.step(self._walk(node, arrives), arrives)[1]:
                kept.append(node)
                needed.add(node.parent)
        return kept[::-1]

    def take(
        self, now: float, least: float, most: int, next_number: Callable[[], int]
    ) -> list[Proposal]:
        """Return the proposals to send now: unsent nodes of at least the value `least`.

        now: seconds
        most: nodes that the target may hold of all that were sent
        """
        if len(self._list.sent) >= most:
            return []
        arrives, proposals = self._times.arrival(now), list[Proposal]()
        waiting = self._list.unsent.take(self._list.log_of(least) - _ROUNDING)
        for index, node in enumerate(waiting):
            if node.number is not None:
                continue  # it was sent as the ancestor of another node
            if self._times.step(self._walk(node.parent, arrives), arrives)[1]:
                self._late.append(node)
                continue
            line = self._unsent_line(node)
            if len(self._list.sent) + len(line) > most:
                for one in waiting[index:]:
                    self._list.unsent.add(one)
                break
            proposals += [self._send(one, arrives, next_number()) for one in line]
        if proposals:
            self._times.sent(proposals[-1].number, now)
        return proposals

    def _walk(self, node: DraftNode | None, arrives: float) -> Walk:
        """Return the node's walk, by the time it was sent, or by `arrives` where it was not
        sent.
        """
        line = list[DraftNode]()
        while node is not None and node.parent is not None and node.epoch != self._epoch:
            line.append(node)
            node = node.parent
        assert node is not None, "only the root has no parent"
        walk = node.walk if node.parent is not None else AT_ROOT
        for one in reversed(line):
            walk = self._times.step(walk, min(one.arrives, arrives))
            if one.number is not None:
                one.walk, one.epoch = walk, self._epoch
        return walk

    def _unsent_line(self, node: DraftNode) -> list[DraftNode]:
        """Return the node and its unsent ancestors, ancestors first."""
        line = [node]
        while (above := line[-1].parent) is not self._list.root:
            if above is None or above.number is not None:
                break
            line.append(above)
        return line[::-1]

    def _send(self, node: DraftNode, arrives: float, number: int) -> Proposal:
        above = node.parent
        assert above is not None, "the root is not sent"
        node.arrives, node.epoch = arrives, -1
        self._list.send(node, number)
        parent = BASE if above is self._list.root or above.number is None else above.number
        return Proposal(number, parent, node.token, math.exp(node.log - above.log))
