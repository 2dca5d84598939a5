"""A proposer that copies: it continues the text as it went on before. It needs no model.

It keeps a best-first list of nodes under the committed tokens. Every node is named its children
from what followed the same words before. Nodes worth their price are sent. A model may join the
list: see ModelProposer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

from inference.candidates import MOST_CANDIDATES, Nodes
from inference.cost.quantity import Usage
from inference.drafters.copy_source import Context, CopySource
from inference.drafters.outbox import Outbox
from inference.drafters.prospects import Copied, Prospect, Prospects
from inference.drafters.timetable import Timetable
from inference.planner.copying import copy_features
from inference.planner.knowledge import Knowledge
from inference.planner.prices import MESSAGE_BYTES, NODE_BYTES, Prices
from inference.proposer import COPY, Notice
from inference.sampling import SamplingParams


class Passed(NamedTuple):
    """A root that is passed: the token that the target chose there, and the nodes pruned."""

    root: Prospect
    token: int
    pruned: list[Prospect]


class CopyProposer:
    """A Proposer without a model, or the part of one that needs none.

    source: what is copied; None copies nothing
    """

    kind = COPY
    listed = 1.0
    """Children become nodes from this part of the least value that is sent."""

    _accounted: tuple[float, float] | None  # when, and seconds drafted by then
    _bytes_up: float
    _runs: list[Nodes]  # taken from the outbox, not handed over yet

    def __init__(self, knowledge: Knowledge, prices: Prices, source: CopySource | None) -> None:
        self.calls = self.proposed = 0  # calls of a model, nodes sent
        self.drafting = 0.0  # seconds
        self._known, self.prices, self._source = knowledge, prices, source
        self._begin([0], SamplingParams(), 1)

    def open(self, prompt: Sequence[int], params: SamplingParams, end: int | None = None) -> None:
        self._begin(prompt, params, 2**31 if end is None else end)

    def hear(self, position: int, tokens: Sequence[int], now: float, notice: Notice) -> None:
        """Take in committed tokens. Raises ValueError for a gap."""
        expected = self._list.root.position + 1
        if position > expected:
            raise ValueError(f"tokens are heard in order: got position {position}, not {expected}")
        fresh = tokens[expected - position :]
        if fresh:
            self._account(len(fresh), now)
            self._advance(fresh)
        if not self.prices.holds_target:  # a held target waits: nothing is late
            self._times.heard(notice)
        self._outbox.heard(notice)

    def work(self, now: float) -> bool:
        self._look()
        return False

    def flush(self, now: float, next_number: Callable[[], int]) -> Nodes | None:
        if not self._runs:
            self._list_children()
            proposals = self._outbox.take(now, self._floor, MOST_CANDIDATES, next_number)
            base, sent = self._list.root.position, self._list.sent
            self._runs = [
                Nodes(base, list(run), COPY if copied else self.kind)
                for copied, run in groupby(proposals, lambda one: sent[one.number].is_copy)
            ]
            self.proposed += len(proposals)
            self._bytes_up += MESSAGE_BYTES * len(self._runs) + NODE_BYTES * len(proposals)
        return self._runs.pop(0) if self._runs else None

    def resend(self) -> None:
        self._runs = []
        self._outbox.resend()

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
        self._begin([0], SamplingParams(), 1)

    def _begin(self, prompt: Sequence[int], params: SamplingParams, end: int) -> None:
        """Reset everything but what was measured, for a text of which the prompt is known."""
        known = self._known
        self._params = params
        self._list = Prospects(prompt[-1], len(prompt) - 1, end)
        self._times = Timetable(known.target.seconds(1, 1), known.link.seconds(0))
        self._outbox, self._runs = Outbox(self._list, self._times), []
        self._accounted, self._bytes_up = None, 0.0
        if self._source is not None:
            self._source.open(prompt)
        self._look()

    def _look(self) -> None:
        """Read prices again. They change slowly."""
        self._floor = self.prices.least_value()

    def _advance(self, tokens: Sequence[int]) -> list[Passed]:
        """Re-root."""
        passed = list[Passed]()
        for token in tokens:
            root = self._list.root
            self._learn(root, token)
            if self._source is not None:
                self._source.extend(token)
            passed.append(Passed(root, token, self._list.advance(token)))
        return passed

    def _learn(self, root: Prospect, token: int) -> None:
        """Learn whether the target took a copied token."""
        if root.copied is not None:
            ids, table, _ = root.copied
            self._known.acceptance.copying.observe(
                table, ids.index(token) if token in ids else None
            )

    def _account(self, tokens: int, now: float) -> None:
        """Record what these tokens took, which sets the price of the next ones."""
        if self._accounted is not None:
            began, drafted = self._accounted
            self.prices.committed(
                tokens, Usage(now - began, self.drafting - drafted, self._bytes_up)
            )
        self._accounted, self._bytes_up = (now, self.drafting), 0.0

    # --- what followed before

    def _list_children(self) -> None:
        """Make nodes of the children that are worth it, copied ones included."""
        least = self.listed * self._floor
        self._list.list_children(least)
        while self._list.fresh:
            fresh, self._list.fresh = self._list.fresh, []
            for node in fresh:
                self._name_early(node)
            self._list.list_children(least)

    def _name_early(self, node: Prospect) -> None:
        """Name the node's children before a model ranks it."""
        self._copy(node)

    def _copy(self, node: Prospect) -> None:
        """Name the node's children from what followed the same words before."""
        if self._source is None or not node.alive or node.copied is not None:
            return
        length, following = self._source.following(self._context(node, self._source))
        if not following:
            return
        table = copy_features(length, following)
        chances = self._known.acceptance.copying.chances(table)
        node.copied = Copied([one.token for one in following], table, chances)
        node.covered = sum(chances)
        if not node.named:
            self._name_children(node, node.copied.ids, chances)

    def _name_children(self, node: Prospect, ids: Sequence[int], chances: Sequence[float]) -> None:
        """Name these children of the node, each with its chance."""
        likeliest = sorted(zip(chances, ids, strict=True), reverse=True)
        logs = [node.log + math.log(max(chance, 1e-300)) for chance, _ in likeliest]
        self._list.name(node, [token for _, token in likeliest], logs)

    def _context(self, node: Prospect, source: CopySource) -> Context:
        """The context behind this node's token."""
        if node.context is None:
            above = node.parent
            node.context = (
                source.end
                if above is None
                else source.step(self._context(above, source), node.token)
            )
        return node.context
