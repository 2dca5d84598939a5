"""The draft's candidates below the committed text, ordered by the chance that the target reaches
them.

Values are logarithms from the text's beginning, so a new root changes no number and no order.
Children become nodes when they are valuable enough. A new root costs time for pruned nodes only.
Pure: no model, no clock, no network.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from inference.drafters.copy_source import Context
from inference.drafters.target_clock import AT_ROOT
from inference.planner.law import FloatArray

_SPARE = 64  # entries of an order that may be out of date before it is looked through


class Copied(NamedTuple):
    """What the copy source names for a node: tokens, their features and their chances."""

    ids: list[int]
    table: list[list[float]]  # [k, F]
    chances: list[float]  # [k]


class Mask(NamedTuple):
    """What a block draft names at a mask: tokens, and what its scores say of each."""

    ids: list[int]
    said: list[list[float]]  # [k, SAID]


class Block(NamedTuple):
    """What one call named behind a node whose token it knew: its masks, the nearest first."""

    node: DraftNode
    masks: list[Mask]


class Guessed(NamedTuple):
    """What a mask names for a node: tokens, their features and their chances.

    offset: positions between the token that the call knew and the mask
    """

    ids: list[int]
    table: list[list[float]]  # [k, F]
    chances: list[float]  # [k]
    offset: int


class DraftNode:
    """A node of the draft's tree.

    log: logarithm of its value, from the text's beginning
    ids, logs: its named children and the logarithms of their values, likeliest first
    listed: how many of the named children are nodes
    named: ids of the named children in the model's own order
    context: what the copy source knows of the tokens up to it; None without one
    features: what the model's scores say about each named child; None before it was ranked
    depth: below the root, when it was ranked
    copied: what the copy source names for it; None where that names nothing
    block: masks of the nearest call at it or above it; None without a block draft
    guessed: what one of these masks names for it
    covered: chance that the target takes a child that was named before it was ranked
    joint: the children that model and copy source name, and what both say of each
    is_copy: whether the copy source alone had named it when it was made
    place: its place in the model's row, None where it has no keys
    number: the number it was sent under, None before
    """

    __slots__ = (
        "alive",
        "arrives",
        "block",
        "children",
        "context",
        "copied",
        "covered",
        "depth",
        "epoch",
        "features",
        "guessed",
        "ids",
        "is_copy",
        "joint",
        "listed",
        "log",
        "logs",
        "named",
        "number",
        "parent",
        "place",
        "position",
        "serial",
        "token",
        "walk",
    )

    def __init__(
        self, token: int, position: int, log: float, serial: int, parent: DraftNode | None
    ) -> None:
        self.token, self.position, self.log, self.serial = token, position, log, serial
        self.parent = parent
        self.children: dict[int, DraftNode] = {}
        self.ids: list[int] = []
        self.logs: list[float] = []
        self.named: list[int] = []
        self.features: FloatArray | None = None
        self.context: Context | None = None
        self.copied: Copied | None = None
        self.block: Block | None = None if parent is None else parent.block
        self.guessed: Guessed | None = None
        self.joint: tuple[list[int], FloatArray] | None = None
        self.covered, self.is_copy = 0.0, False
        self.listed = self.depth = 0
        self.alive = True
        self.place: int | None = None
        self.number: int | None = None
        self.arrives, self.walk, self.epoch = math.inf, AT_ROOT, -1


Entry: TypeAlias = tuple[float, int, DraftNode]
"""Negative logarithm of a value, serial number, node. Entries sort by falling value."""


class Order:
    """Nodes by value. A node is dropped when `wanted` no longer holds for it.

    A node whose value changed is added again; its older entries no longer count.
    """

    def __init__(self, wanted: Callable[[DraftNode], bool]) -> None:
        self._wanted = wanted
        self._entries: list[Entry] = []
        self._sound = 0  # entries after they were last looked through

    def add(self, node: DraftNode) -> None:
        insort(self._entries, (-node.log, node.serial, node))
        if len(self._entries) > 2 * self._sound + _SPARE:
            self._entries = [entry for entry in self._entries if self._counts(entry)]
            self._sound = len(self._entries)

    def first(self, most: int) -> list[DraftNode]:
        """Return the `most` most valuable nodes."""
        sound, seen = list[Entry](), 0
        for entry in self._entries:
            if len(sound) >= most:
                break
            seen += 1
            if self._counts(entry):
                sound.append(entry)
        if seen > len(sound):
            self._entries[:seen] = sound
        return [entry[2] for entry in sound]

    def take(self, least: float) -> list[DraftNode]:
        """Remove and return nodes whose logarithm is at least `least`, the most valuable first."""
        end = bisect_right(self._entries, (-least, math.inf))
        nodes = [entry[2] for entry in self._entries[:end] if self._counts(entry)]
        del self._entries[:end]
        return nodes

    def _counts(self, entry: Entry) -> bool:
        return -entry[0] == entry[2].log and self._wanted(entry[2])


def _unranked(node: DraftNode) -> bool:
    return node.alive and node.place is None


def _unsent(node: DraftNode) -> bool:
    return node.alive and node.number is None and node.parent is not None


class DraftTree:
    """Nodes below the last committed token.

    end: length of the text beyond which no token is wanted
    sent: nodes that the target has or will have, by number
    fresh: nodes that may have children, made since somebody emptied this list
    """

    def __init__(self, token: int, position: int, end: int) -> None:
        self.end, self._serial = end, 0
        self.root = DraftNode(token, position, 0.0, 0, None)
        self.unranked, self.unsent = Order(_unranked), Order(_unsent)
        self.sent: dict[int, DraftNode] = {}
        self.fresh: list[DraftNode] = []
        self._unlisted: list[Entry] = []  # by the likeliest child that is not listed
        self._sound = 0
        self._rankable(self.root)

    def log_of(self, value: float) -> float:
        """Return the `log` of a node with this value."""
        return self.root.log + math.log(value)

    def name(self, node: DraftNode, ids: list[int], logs: list[float]) -> None:  # likeliest first
        """Name the node's children, the likeliest first. They become nodes when they are worth
        it.

        Naming them anew replaces what was named before; children that are nodes stay.
        """
        node.ids, node.logs, node.listed = ids, logs, 0
        for token, log in zip(ids, logs, strict=True) if node.children else ():
            child = node.children.get(token)
            if child is not None and child.log != log:
                self._shift(child, log - child.log)
        if ids:
            heapq.heappush(self._unlisted, (-logs[0], node.serial, node))

    def list_children(self, least: float) -> None:
        """Make nodes of all named children of at least this value."""
        bound, heap = -self.log_of(least), self._unlisted
        while heap and heap[0][0] <= bound:
            node = heap[0][2]
            if node.alive and node.listed < len(node.ids) and -node.logs[node.listed] <= bound:
                self._list(node)
            if node.alive and node.listed < len(node.ids):
                heapq.heapreplace(heap, (-node.logs[node.listed], node.serial, node))
            else:
                heapq.heappop(heap)
        if len(heap) > 2 * self._sound + _SPARE:
            self._unlisted = [entry for entry in heap if entry[2].alive]
            heapq.heapify(self._unlisted)
            self._sound = len(self._unlisted)

    def advance(self, token: int) -> list[DraftNode]:
        """Commit a token: its node becomes the root. Returns the nodes that were pruned."""
        before = self.root
        after = before.children.pop(token, None)
        if after is None:
            self._serial += 1
            after = DraftNode(token, before.position + 1, before.log, self._serial, None)
            self._rankable(after)
        elif after.number is not None:
            del self.sent[after.number]
        before.alive, after.parent, self.root = False, None, after
        return list(self._prune(before))

    def send(self, node: DraftNode, number: int) -> None:
        """Record that the node was sent under this number."""
        node.number = number
        self.sent[number] = node

    def recall(self) -> None:
        """Mark every sent node as unsent."""
        sent, self.sent = list(self.sent.values()), {}
        for node in sent:
            node.number, node.arrives, node.epoch = None, math.inf, -1
            self.unsent.add(node)

    def _list(self, node: DraftNode) -> None:
        index, node.listed = node.listed, node.listed + 1
        if node.ids[index] not in node.children:
            self._make(node, index)

    def _make(self, node: DraftNode, index: int) -> DraftNode:
        token, log = node.ids[index], node.logs[index]
        self._serial += 1
        made = node.children[token] = DraftNode(token, node.position + 1, log, self._serial, node)
        made.is_copy = node.copied is not None and token not in node.named
        if made.is_copy and node.guessed is not None:
            made.is_copy = token not in node.guessed.ids
        self._rankable(made)
        self.unsent.add(made)
        return made

    def _rankable(self, node: DraftNode) -> None:
        if node.position < self.end - 2:  # the last token is the target's own in any case
            self.unranked.add(node)
            self.fresh.append(node)

    def _shift(self, node: DraftNode, by: float) -> None:
        """Change the value of a node and of all nodes below it."""
        below = [node]
        for one in below:  # the list grows during the loop
            one.log += by
            one.logs = [log + by for log in one.logs]
            if one.place is None and one.position < self.end - 2:
                self.unranked.add(one)
            if one.number is None:
                self.unsent.add(one)
            if one.listed < len(one.ids):
                heapq.heappush(self._unlisted, (-one.logs[one.listed], one.serial, one))
            below.extend(one.children.values())

    def _prune(self, node: DraftNode) -> Iterator[DraftNode]:
        below = list(node.children.values())
        node.children = {}
        while below:
            dead = below.pop()
            dead.alive = False
            if dead.number is not None:
                del self.sent[dead.number]
            below.extend(dead.children.values())
            dead.children, dead.parent = {}, None
            yield dead
