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
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

_NEVER = 1e-300  # least chance, whose logarithm is finite
_SPARE = 64  # entries of an order that may be out of date before it is looked through


class Named(NamedTuple):
    """Children that one source names for a node."""

    ids: list[int]
    table: Any  # [k, F] what the source says of each child, as its law reads it: array or lists
    chances: Sequence[float]  # [k]


class Mask(NamedTuple):
    """Tokens that a block draft names at a mask, and what its scores say of each."""

    ids: list[int]
    said: list[list[float]]  # [k, SAID]


class Block(NamedTuple):
    """Masks that one call put behind a node whose token it knew, the nearest first."""

    node: DraftNode
    masks: list[Mask]


class DraftNode:
    """A node of the draft's tree.

    log: logarithm of its value, from the text's beginning
    ids, logs: its named children and the logarithms of their values, likeliest first
    listed: how many of the named children are nodes
    context: the text source's context up to it; None before it was asked for
    copied, masked, ranked: its children as the text source, the nearest mask and the model name
        them; None where they name nothing
    joint: the children that model and text source name, and what both say of each
    offset: positions between the last token that its mask's call knew and the mask
    block: masks of the nearest call at it or above it; None without a block draft
    forced: tokens that a grammar forces behind it; its children are of no other source then
    covered: chance that the target takes a child that was named before it was ranked
    is_copy: whether no model had named it when it was made
    depth: below the root, when it was ranked
    index: its place among the nodes with keys, None where it has no keys
    number: the number it was sent under, None before
    """

    __slots__ = (
        "alive", "block", "children", "context", "copied", "covered", "depth", "forced", "ids",
        "index", "is_copy", "joint", "listed", "log", "logs",
        "masked", "number", "offset", "parent", "position", "ranked", "serial", "token",
    )  # fmt: skip

    def __init__(
        self, token: int, position: int, log: float, serial: int, parent: DraftNode | None
    ) -> None:
        self.token, self.position, self.log, self.serial = token, position, log, serial
        self.parent = parent
        self.children: dict[int, DraftNode] = {}
        self.ids: list[int] = []
        self.logs: list[float] = []
        self.context: object = None
        self.copied: Named | None = None
        self.masked: Named | None = None
        self.ranked: Named | None = None
        self.joint: Named | None = None
        self.block: Block | None = None if parent is None else parent.block
        self.forced: Sequence[int] = ()
        self.covered, self.is_copy = 0.0, False
        self.listed = self.depth = self.offset = 0
        self.alive = True
        self.index: int | None = None
        self.number: int | None = None

    @property
    def path(self) -> list[int]:
        """Tokens behind the root, up to its own."""
        line, node = list[int](), self
        while node.parent is not None:
            line.append(node.token)
            node = node.parent
        return line[::-1]


OrderEntry: TypeAlias = tuple[float, int, DraftNode]
"""Negative logarithm of a value, serial number, node. Entries sort by falling value."""


class Order:
    """Nodes by value. A node is dropped when it was pruned, or `wanted` no longer holds for it.

    A node whose value changed is added again; its older entries no longer count.
    """

    def __init__(self, wanted: Callable[[DraftNode], bool]) -> None:
        self._wanted = wanted
        self._entries: list[OrderEntry] = []
        self._sound = 0  # entries after they were last looked through

    def add(self, node: DraftNode) -> None:
        insort(self._entries, (-node.log, node.serial, node))
        if len(self._entries) > 2 * self._sound + _SPARE:
            self._entries = [entry for entry in self._entries if self._counts(entry)]
            self._sound = len(self._entries)

    def first(self, most: int) -> list[DraftNode]:
        """Return the `most` most valuable nodes."""
        sound, seen = list[OrderEntry](), 0
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

    def _counts(self, entry: OrderEntry) -> bool:
        node = entry[2]
        return -entry[0] == node.log and node.alive and self._wanted(node)


class DraftTree:
    """Nodes below the last committed token.

    end: length of the text beyond which no token is wanted
    sent: nodes that the target has or will have, by number
    fresh: nodes that may have children, made since somebody emptied this list
    """

    def __init__(self, token: int, position: int, end: int) -> None:
        self.end, self._serial = end, 0
        self.root = DraftNode(token, position, 0.0, 0, None)
        self.unranked = Order(lambda node: node.index is None)
        self.unsent = Order(lambda node: node.number is None and node.parent is not None)
        self.sent: dict[int, DraftNode] = {}
        self.fresh: list[DraftNode] = []
        self._unlisted: list[OrderEntry] = []  # by the likeliest child that is not listed
        self._sound = 0
        self._rankable(self.root)

    def unheard(self, position: int, tokens: Sequence[int]) -> Sequence[int]:
        """Return those of the committed tokens from this position on that are behind the root.

        Raises ValueError for a gap.
        """
        expected = self.root.position + 1
        if position > expected:
            raise ValueError(f"tokens are heard in order: got position {position}, not {expected}")
        return tokens[expected - position :]

    def log_of(self, value: float) -> float:
        """Return the `log` of a node with this value."""
        return self.root.log + math.log(value)

    def name(self, node: DraftNode, ids: Sequence[int], chances: Sequence[float]) -> None:  # [k]
        """Name the node's children, each with its chance. They become nodes when they are worth it.

        Naming them anew replaces what was named before; children that are nodes stay.
        """
        order = sorted(range(len(ids)), key=chances.__getitem__, reverse=True)
        node.ids, node.listed = [ids[child] for child in order], 0
        node.logs = [node.log + math.log(max(chances[child], _NEVER)) for child in order]
        for token, log in zip(node.ids, node.logs, strict=True) if node.children else ():
            child = node.children.get(token)
            if child is not None and child.log != log:
                self._shift(child, log - child.log)
        if ids:
            heapq.heappush(self._unlisted, (-node.logs[0], node.serial, node))

    def add(self, node: DraftNode, token: int, log: float) -> DraftNode:
        """Make a child of the node at once, whatever its value."""
        self._serial += 1
        made = node.children[token] = DraftNode(token, node.position + 1, log, self._serial, node)
        self._rankable(made)
        self.unsent.add(made)
        return made

    def list_children(self, least: float) -> None:
        """Make nodes of all named children of at least this value."""
        bound, heap = -self.log_of(least), self._unlisted
        while heap and heap[0][0] <= bound:
            node = heap[0][2]
            if node.alive and node.listed < len(node.ids) and -node.logs[node.listed] <= bound:
                token, node.listed = node.ids[node.listed], node.listed + 1
                if token not in node.children:
                    made = self.add(node, token, node.logs[node.listed - 1])
                    drafted = [one for one in (node.ranked, node.masked) if one is not None]
                    made.is_copy = all(token not in one.ids for one in drafted)
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
            after.number = None
        before.alive, after.parent, self.root = False, None, after
        return list(self._prune(before))

    def clear(self) -> list[DraftNode]:
        """Remove all nodes below the root, and return them."""
        return list(self._prune(self.root))

    def number(self, nodes: Sequence[DraftNode], first: int) -> None:
        """Number the nodes from `first` on: they are sent now."""
        for number, node in enumerate(nodes, first):
            node.number = number
            self.sent[number] = node

    def recall(self) -> None:
        """Mark every sent node as unsent."""
        sent, self.sent = list(self.sent.values()), {}
        for node in sent:
            node.number = None
            self.unsent.add(node)

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
            if one.index is None and one.position < self.end - 2:
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
