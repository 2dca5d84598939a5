"""Chooses the nodes to send, and the time, by where the target is now. Pure: no model, no clock.

A node is sent once, with its unsent ancestors. Its value must be above the floor. It must also
arrive before the target has passed its position. The target makes one forward after the other. A
forward walks over nodes that have arrived when it starts. Where none has, it makes the token
itself, and a node for that position is too late.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

from inference.draft_tuning import TUNING
from inference.drafters.draft_tree import DraftNode, DraftTree
from inference.proposer import BASE, Notice, Proposal


class TargetClock:
    """Start times of the target's forwards, and arrival times of messages there.

    forward: seconds of a forward
    round_trip: seconds between the two ends and back, without the target's work

    Both hold prior estimates until something is heard. A message that a forward knew of was sent at
    most that long before the forward began. The shortest such time is the round trip plus a little
    waiting. Forwards are counted from the next one, as if a node's path were right.
    """

    def __init__(self, forward: float, round_trip: float) -> None:
        self.forward, self.round_trip = forward, round_trip
        self._starts = math.inf  # nothing is late before the target began
        self._sent: deque[tuple[int, float]] = deque()  # (n, when): numbers below n were sent
        self._waits = deque([round_trip] if round_trip else [], maxlen=TUNING.crossings)

    def sent(self, number: int, now: float) -> None:
        """Record that nodes up to this number were sent at `now` seconds."""
        self._sent.append((number + 1, now))

    def forget(self) -> None:
        """Forget all numbers: they start again."""
        self._sent.clear()

    def hear(self, notice: Notice) -> None:
        """Update the estimates from a message. The next forward starts when its tokens left the
        target.
        """
        weight = TUNING.forward_forgetting if self.forward else 1.0
        self.forward += weight * (notice.model_seconds - self.forward)
        newest = None
        while self._sent and self._sent[0][0] <= notice.known:
            newest = self._sent.popleft()[1]
        if newest is not None:
            self._waits.append(max(notice.at - notice.model_seconds - newest, 0.0))
            self.round_trip = min(self._waits)
        self._starts = notice.at - self.round_trip / 2

    def arrival(self, now: float) -> float:
        """Return when a message sent now arrives at the target, in seconds."""
        return now + self.round_trip / 2

    def is_late(self, forward: int, arrives: float) -> bool:
        """Tell whether a node that this forward reaches arrives after it: the forward makes the
        token itself.
        """
        return arrives > self._starts + (forward + TUNING.spare) * self.forward


_ROUNDING = 1e-9  # tolerance for logarithms


class CandidateSender:
    """The unsent nodes of one text, and the clock that tells which of them arrive in time."""

    def __init__(self, tree: DraftTree, clock: TargetClock) -> None:
        self._tree, self._clock = tree, clock
        self._epoch = 0  # version of the clock
        self._late: list[DraftNode] = []  # would arrive too late by the present clock

    def hear(self, notice: Notice) -> None:
        """Look at late nodes again: the clock has changed, so they may be in time."""
        self._epoch += 1
        for node in self._late:
            self._tree.unsent.add(node)  # unless it died meanwhile
        self._late = []
        if notice.held < sum(number < notice.known for number in self._tree.sent):
            self.recall()  # some that had arrived are not there

    def recall(self) -> None:
        """Forget all numbers: everything that was sent is lost."""
        self._clock.forget()
        self._tree.recall()

    def in_time(self, nodes: Sequence[DraftNode], arrives: float) -> list[DraftNode]:
        """Return the nodes whose children would arrive before the target has passed them, and the
        nodes above these, whose keys they need.

        nodes: each behind its parent
        arrives: seconds, when the children would arrive at the target
        """
        kept, needed = list[DraftNode](), set[DraftNode | None]()
        for node in reversed(nodes):
            late = self._clock.is_late(self._forward_after(node, arrives), arrives)
            if node in needed or not late:
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
        tree = self._tree
        if len(tree.sent) >= most:
            return []
        arrives, proposals = self._clock.arrival(now), list[Proposal]()
        waiting = tree.unsent.take(tree.log_of(least) - _ROUNDING)
        for index, node in enumerate(waiting):
            if node.number is not None:
                continue  # it was sent as the ancestor of another node
            if self._clock.is_late(self._forward_after(node.parent, arrives), arrives):
                self._late.append(node)
                continue
            line = self._unsent_line(node)
            if len(tree.sent) + len(line) > most:
                for one in waiting[index:]:
                    tree.unsent.add(one)
                break
            proposals += [self._send(one, arrives, next_number()) for one in line]
        if proposals:
            self._clock.sent(proposals[-1].number, now)
        return proposals

    def _forward_after(self, node: DraftNode | None, arrives: float) -> int:
        """Return the forward that reaches the node's children, by the time the node was sent, or
        by `arrives` where it was not.
        """
        line = list[DraftNode]()
        while node is not None and node.parent is not None and node.epoch != self._epoch:
            line.append(node)
            node = node.parent
        assert node is not None, "only the root has no parent"
        forward = node.forward_after if node.parent is not None else 0
        for one in reversed(line):
            forward += self._clock.is_late(forward, min(one.arrives, arrives))
            if one.number is not None:
                one.forward_after, one.epoch = forward, self._epoch
        return forward

    def _unsent_line(self, node: DraftNode) -> list[DraftNode]:
        """Return the node and its unsent ancestors, ancestors first."""
        line = [node]
        while (above := line[-1].parent) is not self._tree.root:
            if above is None or above.number is not None:
                break
            line.append(above)
        return line[::-1]

    def _send(self, node: DraftNode, arrives: float, number: int) -> Proposal:
        above = node.parent
        assert above is not None, "the root is not sent"
        node.arrives, node.epoch, node.number = arrives, -1, number
        self._tree.sent[number] = node
        parent = BASE if above is self._tree.root or above.number is None else above.number
        return Proposal(number, parent, node.token, math.exp(node.log - above.log))
