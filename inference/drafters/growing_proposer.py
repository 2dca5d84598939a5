"""A proposer that never waits: its draft tree grows under what is known to be committed.

Sources name children of its nodes, each with a chance: tokens that a grammar forces, text that
followed the same words before, a draft model that ranks nodes, and masks behind these. All compete
in one best-first tree. Nodes worth their price are sent. Committed tokens make one of the nodes the
new root, and keep what is below. A call of the model has three parts, so that a host can batch
rows: choose, segment, take.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from inference.backends import Ranked, Segment
from inference.draft_tuning import TUNING
from inference.drafters.block_masks import BlockMasks
from inference.drafters.candidate_sender import CandidateSender, message_of
from inference.drafters.copied_text import CopiedText, TextSource
from inference.drafters.draft_row import DraftRow
from inference.drafters.draft_rule import DraftRule, MakeRule, no_rule
from inference.drafters.draft_tree import DraftNode, DraftTree, Named
from inference.planner.acceptance import Knowledge
from inference.planner.child_features import joint_features, rank_features
from inference.planner.prices import Prices, Usage
from inference.proposer import (
    COPY,
    MESSAGE_BYTES,
    MODEL,
    MOST_CANDIDATES,
    NODE_BYTES,
    DraftUsage,
    Nodes,
    Notice,
)
from inference.sampling import SamplingParams
from inference.times import TRUSTED

ENDLESS = 2**31
"""Length of a text without an end."""


class GrowingProposer:
    """A Proposer.

    source: text that is copied; None copies nothing
    row: where a draft model ranks nodes; None drafts without a model
    make_rule: makes the rule of a text
    prices: by which it drafts
    proposed: nodes sent
    """

    _params: SamplingParams
    _rule: DraftRule
    _tree: DraftTree
    _sender: CandidateSender
    _runs: list[Nodes]  # taken from the sender, not handed over yet
    _accounted: tuple[float, float] | None  # when, and seconds drafted by then
    _bytes_up: float
    _floor: float  # least value of a node that is sent
    _chosen: Sequence[DraftNode]
    _calling: Sequence[DraftNode]  # in the call that is under way
    _silent: int  # committed tokens since the last call
    _hits: float  # how often the draft named the target's token lately

    def __init__(
        self,
        knowledge: Knowledge,
        prices: Prices,
        source: TextSource | None = None,
        row: DraftRow | None = None,
        *,
        kind: int = MODEL,
        make_rule: MakeRule = no_rule,
    ) -> None:
        self._known, self.prices, self._row, self.proposed = knowledge, prices, row, 0
        self._make_rule = make_rule
        self._kind = COPY if row is None else kind
        learned = knowledge.acceptance
        self._copied = None if source is None else CopiedText(source, learned)
        masks = None if row is None else row.masks
        self._masks = None if row is None or masks is None else BlockMasks(masks, row, learned)
        self.open([0], SamplingParams(), 1)

    @property
    def usage(self) -> DraftUsage:
        """Work of the model, over all texts so far."""
        return DraftUsage() if self._row is None else self._row.usage

    def open(self, prompt: Sequence[int], params: SamplingParams, end: int | None = None) -> None:
        self._params, self._rule = params, DraftRule(self._make_rule, prompt, params)
        self._tree = DraftTree(prompt[-1], len(prompt) - 1, ENDLESS if end is None else end)
        self._sender, self._runs = CandidateSender(self._tree), []
        self._accounted, self._bytes_up = None, 0.0
        self._forward = self._known.target.seconds(1, 1)
        self._chosen, self._calling = [], []
        self._silent, self._hits = 0, 1.0
        if self._copied is not None:
            self._copied.open(prompt, self._rule)
        if self._row is not None:
            self._row.open(prompt, params, self._rule)
        if self._masks is not None:
            self._masks.open(self._tree, self._rule)
        self._look()

    def hear(self, position: int, tokens: Sequence[int], now: float, notice: Notice | None) -> None:
        """Take in committed tokens. Raises ValueError for a gap."""
        fresh = self._tree.unheard(position, tokens)
        if fresh:
            self._account(len(fresh), now)
            self._advance(fresh)
        if notice is None:
            self._runs = []
            self._sender.recall()
            return
        weight = TUNING.forward_forgetting if self._forward else 1.0
        self._forward += weight * (notice.model_seconds - self._forward)
        self._sender.hear(notice)

    def work(self, now: float) -> DraftUsage | None:
        if self._row is None:
            self._look()
            return None
        if self._row.feed():
            return DraftUsage()
        if not self.choose(now):
            return None
        return self.take(*self._row.rank(self.segment(), TUNING.width))

    def flush(self, now: float, first: int) -> Nodes | None:
        if not self._runs:
            self._list_children()
            nodes = self._sender.take(self._floor, MOST_CANDIDATES, first)
            self._runs = [
                message_of(self._tree, list(run), COPY if copied else self._kind)
                for copied, run in groupby(nodes, lambda node: node.is_copy)
            ]
            self.proposed += len(nodes)
            self._bytes_up += MESSAGE_BYTES * len(self._runs) + NODE_BYTES * len(nodes)
        return self._runs.pop(0) if self._runs else None

    def close(self) -> None:
        if self._copied is not None:
            self._copied.close()
        self.open([0], SamplingParams(), 1)

    # --- a call of the model

    def feed(self) -> bool:
        """Compute the keys of the next part of the prompt in one call; False when all are there."""
        return self._row is not None and self._row.feed()

    def choose(self, now: float, most_seconds: float = math.inf) -> Sequence[DraftNode]:
        """Return the nodes that the next call ranks; none if no call is worth its price.

        A call takes at most `most_seconds`. segment() and take() follow, or another choose().
        """
        row = self._row
        if row is None:
            return []
        self._list_children()
        nodes = self._tree.unranked.first(row.free)
        nodes = [node for node in nodes if node.position < row.longest]
        while nodes and row.whole_seconds(len(nodes)) > most_seconds:
            nodes = nodes[: len(nodes) // 2]
        again = self._silent >= TUNING.tries_again and nodes[:1] == [self._tree.root]
        slow = not self.prices.holds_target and row.seconds(1) >= self._forward > 0
        if slow and row.usage.calls >= TRUSTED:
            nodes = []  # a draft this slow never catches up with a target that is ahead
        root = self._tree.root.log
        values = np.exp([node.log - root for node in nodes])
        uncovered = values * (1 - np.array([node.covered for node in nodes]))
        gains: list[float] = np.cumsum(self._gains(uncovered)).tolist()
        if self._masks is None:
            width = self.prices.width(gains, row.seconds)
        else:
            width = self._masks.plan(nodes, gains, self._hits, self.prices, most_seconds)
        self._chosen = nodes[:width]
        if again and not self._chosen:
            self._chosen = [self._tree.root]
        return self._chosen

    def segment(self) -> Segment:
        """Return this row's share of a call that ranks the chosen nodes. The call is now under
        way.
        """
        assert self._row is not None, "choose() found nodes"
        self._calling = self._chosen
        indices = self._row.put(self._calling, self._tree.root)
        masks = [] if self._masks is None else self._masks.put()
        return self._row.segment([*indices, *masks])

    def take(self, ranked: Ranked, seconds: float) -> DraftUsage:
        """Take the result of the call, which took `seconds`."""
        assert self._row is not None, "segment() made a call"
        nodes, self._calling, self._chosen = self._calling, [], []
        used = self._row.count(ranked, seconds)
        self._silent = 0
        calls = self._row.usage.calls
        if calls % TUNING.times_kept == 0 or calls < TUNING.times_kept:
            self._look()
        own = len(nodes)
        if self._masks is not None:
            self._masks.release()
        ids, scores, greedy = ranked.ids[:own], ranked.scores[:own], self._params.greedy
        tables = rank_features(scores, [node.depth for node in nodes], greedy)
        edges = self._known.acceptance.edges_of(tables, scores, greedy).tolist()
        for node, named, table, row in zip(nodes, ids.tolist(), tables, edges, strict=True):
            if not node.forced:
                node.ranked = Named(named, table, row)
                self._name(node)
        if self._masks is not None:
            said = Ranked(ranked.ids[own:], ranked.scores[own:])
            for below in self._masks.take(said, greedy):
                self._name(below)
        return used

    def _gains(self, values: NDArray[np.float64]) -> NDArray[np.float64]:  # [n] -> [n]
        """Expected nodes worth sending that ranking each of these finds.

        The rates of the ranks are scaled down by how often the draft hit lately.
        """
        rates = self._known.acceptance.mean_edges(TUNING.width)
        rates = rates * min(self._hits / float(rates.sum()), 1.0)
        found = values[:, None] * rates - self._floor / 2
        return np.asarray(np.maximum(found, 0.0).sum(axis=1))

    # --- naming

    def _list_children(self) -> None:
        """Make nodes of the children that are worth it, those of new nodes included."""
        tree = self._tree
        least = self._floor if self._row is None else TUNING.worth_ranking * self._floor
        tree.list_children(least)
        while tree.fresh:
            fresh, tree.fresh = tree.fresh, []
            for node in fresh:
                self._name_early(node)
            tree.list_children(least)

    def _name_early(self, node: DraftNode) -> None:
        """Name the node's children before a model ranks it."""
        if not node.alive:
            return
        node.forced = self._rule.forced(node)
        if node.forced:
            node.covered = 1.0  # no other source is asked
            self._tree.name(node, node.forced[:1], [node.covered])
            return
        if self._copied is not None and node.copied is None:
            node.copied = self._copied.name(node)
        if self._masks is not None and node.masked is None:
            self._masks.name(node, self._params.greedy)
        if node.copied is not None or node.masked is not None:
            self._name(node)

    def _name(self, node: DraftNode) -> None:
        """Name the node's children by all that sources say of them."""
        drafted, copied = node.ranked or node.masked, node.copied
        named = drafted or copied
        assert named is not None, "a source has named children"
        ids, chances = named.ids, named.chances
        if drafted is not None and copied is not None:
            said = dict(zip(ids, chances, strict=True))
            ids, table = joint_features(said, dict(zip(copied.ids, copied.chances, strict=True)))
            chances = self._known.acceptance.together(table).tolist()
            if node.ranked is not None:
                node.joint = Named(ids, table, chances)
        if node.ranked is None:
            node.covered = min(sum(chances), 1.0)
        self._tree.name(node, ids, chances)

    # --- what the target says

    def _advance(self, tokens: Sequence[int]) -> None:
        """Re-root: learn from the roots that are passed, and keep the keys of committed tokens."""
        passed, gone = list[DraftNode](), list[DraftNode]()
        self._rule.commit(tokens)
        for token in tokens:
            root = self._tree.root
            if self._copied is not None:
                self._copied.hear(root, token)
            if self._masks is not None:
                self._masks.learn(root, token, self._params.greedy)
            passed.append(root)
            gone += self._tree.advance(token)
        if self._row is not None:
            self._row.advance(passed, gone, self._tree.root)
            self._silent += len(tokens)
            self._learn_ranks(list(zip(passed, tokens, strict=True)))

    def _learn_ranks(self, path: Sequence[tuple[DraftNode, int]]) -> None:
        """Learn which children the target took at nodes that the draft has ranked."""
        acceptance, tables, ranks = self._known.acceptance, [], list[int | None]()
        for node, token in path:
            if node.ranked is None:
                continue
            tables.append(node.ranked.table)
            ranks.append(_rank_of(token, node.ranked))
            chance = 0.0
            if ranks[-1] is not None:
                chance = math.exp(node.logs[node.ids.index(token)] - node.log)
            self._hits += ((chance >= self._floor) - self._hits) / TUNING.hits_remembered
            if node.joint is not None:
                acceptance.observe_together(
                    np.asarray(node.joint.table), _rank_of(token, node.joint)
                )
        if ranks:
            acceptance.observe_path(np.array(tables), self._params.greedy, ranks)

    # --- prices

    def _look(self) -> None:
        """Read prices and times again. They change slowly."""
        self._floor = self.prices.least_value()
        if self._row is not None:
            self._row.forget_times()
        if self._masks is not None:
            self._masks.look(self._floor)

    def _account(self, tokens: int, now: float) -> None:
        """Record what these tokens took, which sets the price of the next ones."""
        drafted = self.usage.seconds
        if self._accounted is not None:
            began, before = self._accounted
            self.prices.committed(tokens, Usage(now - began, drafted - before, self._bytes_up))
        self._accounted, self._bytes_up = (now, drafted), 0.0


def _rank_of(token: int, named: Named) -> int | None:
    return named.ids.index(token) if token in named.ids else None
