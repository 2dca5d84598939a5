"""A proposer that never waits: its draft tree grows after the committed tokens.

Several sources propose children of the tree's nodes, each with a probability: tokens that a grammar
forces, copies of earlier text, and a draft model that ranks nodes. All compete in one best-first
tree. Nodes that are worth their price are sent. Committed tokens move the root; nodes below it
stay. A model call has three steps, so that a host can batch rows: choose, segment, take.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference.backends import Model, Ranked, Segment
from inference.backends.sequence import MakeSequence, TargetText, own_sequence
from inference.drafters.copied_text import CopiedText
from inference.drafters.draft_row import DraftRow, DraftRule, MakeRule, no_rule
from inference.drafters.draft_tree import DraftTree, ProposedChildren
from inference.loop.draft_tuning import TUNING
from inference.order import Progress
from inference.planner.acceptance import PairStats
from inference.planner.child_features import joint_features, rank_features
from inference.planner.prices import Prices, Usage
from inference.proposer import (
    COPY,
    MAX_CANDIDATES,
    MESSAGE_BYTES,
    MODEL,
    NODE_BYTES,
    DraftUsage,
    Nodes,
)
from inference.sampling import SamplingParams
from inference.text.grammar import Grammars
from inference.times import TRUSTED
from inference.tree.growing_tree import PLACE, Mark

ENDLESS = 2**31
"""Maximum length of a sequence if the request sets none."""


class GrowingProposer:
    """A Proposer that grows a draft tree continuously.

    row: the row of the draft model that ranks nodes; None to draft without a model
    copies: whether copies of earlier text are proposed
    make_rule: builds the rule of a request
    prices: decide which calls and which nodes are worth their cost
    proposed: number of nodes sent
    """

    _params: SamplingParams
    _rule: DraftRule
    _tree: DraftTree
    _runs: list[Nodes]  # messages with numbered nodes that were not returned yet
    _accounted: tuple[float, float] | None  # time, and seconds of drafting until then
    _bytes_up: float
    _floor: float  # minimum value of a node to be sent
    _chosen: Sequence[Mark]
    _silent: int  # committed tokens since the last call of the model
    _hits: float  # recent rate at which the draft proposed the target's token

    def __init__(
        self,
        stats: PairStats,
        prices: Prices,
        row: DraftRow | None = None,
        *,
        copies: bool = False,
        kind: int = MODEL,
        make_rule: MakeRule = no_rule,
    ) -> None:
        self._stats, self.prices, self._row, self.proposed = stats, prices, row, 0
        self._make_rule = make_rule
        self._kind = COPY if row is None else kind
        self._copied = CopiedText(stats.acceptance.laws.copies) if copies else None
        self.open([0], SamplingParams(), 1)

    @property
    def usage(self) -> DraftUsage:
        """Work of the model, over all requests so far."""
        return DraftUsage() if self._row is None else self._row.usage

    def open(self, prompt: Sequence[int], params: SamplingParams, end: int | None = None) -> None:
        self._params, self._rule = params, DraftRule(self._make_rule, prompt, params)
        self._tree = DraftTree(prompt[-1], len(prompt) - 1, ENDLESS if end is None else end)
        self._runs, self._accounted, self._bytes_up = [], None, 0.0
        self._forward = self._stats.target.seconds(1, 1)
        self._chosen, self._silent, self._hits = [], 0, 1.0
        if self._copied is not None:
            self._copied.open(prompt, self._rule, self._tree)
        if self._row is not None:
            self._row.open(prompt, params, self._rule, self._tree)
        self._read_prices()

    def on_progress(self, progress: Progress, now: float) -> None:
        fresh = self._tree.new_tokens(progress)
        if fresh:
            self._account(len(fresh), now)
            self._advance(fresh)
        weight = TUNING.forward_forgetting if self._forward else 1.0
        self._forward += weight * (progress.pass_seconds - self._forward)
        arrived = sum(number < progress.known for number in self._tree.sent.values())
        if progress.held < arrived:
            self._tree.recall()  # the target has dropped some of the sent nodes

    def on_new_stream(self) -> None:
        self._runs = []
        self._tree.recall()

    def work(self, now: float) -> DraftUsage | None:
        if self._row is None:
            self._read_prices()
            return None
        if self._row.feed():
            return DraftUsage()
        if not self.choose(now):
            return None
        return self.take(*self._row.rank(self.segment(), TUNING.width))

    def flush(self, now: float, first: int) -> Nodes | None:
        if not self._runs:
            self._list_children()
            tree = self._tree
            nodes = tree.take_unsent(self._floor, MAX_CANDIDATES, first)
            self._runs = [
                tree.message(list(run), COPY if copied else self._kind)
                for copied, run in groupby(nodes, tree.copies.__contains__)
            ]
            self.proposed += len(nodes)
            self._bytes_up += MESSAGE_BYTES * len(self._runs) + NODE_BYTES * len(nodes)
        return self._runs.pop(0) if self._runs else None

    def close(self) -> None:
        self.open([0], SamplingParams(), 1)

    # --- a call of the model

    def feed(self) -> bool:
        """Prefill the next part of the prompt in one call. Return False if none is left."""
        return self._row is not None and self._row.feed()

    def choose(self, now: float, max_seconds: float = math.inf) -> Sequence[Mark]:
        """Return the nodes that the next call should rank; none if no call is worth its price.

        max_seconds: maximum seconds of the call. Then call segment() and take(), or choose() again
        """
        row, tree = self._row, self._tree
        if row is None:
            return []
        self._list_children()
        nodes, longest = tree.unranked.first(row.free), row.longest
        nodes = [node for node in nodes if tree.position_of(node) < longest]
        while nodes and row.whole_seconds(len(nodes)) > max_seconds:
            nodes = nodes[: len(nodes) // 2]
        again = self._silent >= TUNING.tries_again and nodes[:1] == [tree.root]
        slow = not self.prices.holds_target and row.seconds(1) >= self._forward > 0
        if slow and row.usage.calls >= TRUSTED:
            nodes = []  # a draft this slow never catches up with a target that is ahead
        values = np.exp(tree.rank(tree.root) - tree.ranks[[node & PLACE for node in nodes]])
        uncovered = values * (1 - np.array([tree.covered.get(node, 0.0) for node in nodes]))
        gains: list[float] = np.cumsum(self._gains(uncovered)).tolist()
        self._chosen = nodes[: self.prices.width(gains, row.seconds)]
        if again and not self._chosen:
            self._chosen = [tree.root]
        return self._chosen

    def segment(self) -> Segment:
        """Begin the call that ranks the chosen nodes. Return this row's segment of the call."""
        assert self._row is not None, "choose() found nodes"
        return self._row.segment(self._chosen)

    def take(self, ranked: Ranked, seconds: float) -> DraftUsage:
        """Process the result of a call that took `seconds`."""
        assert self._row is not None, "segment() made a call"
        tree, nodes, self._chosen = self._tree, self._chosen, []
        used = self._row.count(len(nodes), seconds)
        self._silent = 0
        calls = self._row.usage.calls
        if calls % TUNING.price_interval == 0 or calls < TUNING.price_interval:
            self._read_prices()
        scores, greedy = ranked.scores, self._params.greedy
        depths = [tree.position_of(node) - tree.position for node in nodes]
        tables = rank_features(scores, depths, greedy)
        edges = self._stats.acceptance.edges_of(tables, scores, greedy).tolist()
        for node, tokens, table, row in zip(nodes, ranked.ids.tolist(), tables, edges, strict=True):
            if node not in tree.forced:
                tree.ranked[node] = ProposedChildren(tokens, table, row)
                self._propose(node)
        return used

    def _gains(self, values: NDArray[np.float64]) -> NDArray[np.float64]:  # [n] -> [n]
        """Return the expected gain in tokens below each of these nodes, if it is ranked. The
        draft's recent hit rate scales down the ranks' average acceptance.
        """
        rates = self._stats.acceptance.mean_edges(TUNING.width)
        rates = rates * min(self._hits / float(rates.sum()), 1.0)
        gains = values[:, None] * rates - self._floor / 2
        return np.asarray(np.maximum(gains, 0.0).sum(axis=1))

    # --- proposals

    def _list_children(self) -> None:
        """Turn proposed children that are valuable enough into nodes, also below new nodes."""
        tree = self._tree
        floor = self._floor if self._row is None else TUNING.worth_ranking * self._floor
        tree.list_children(floor)
        while tree.fresh:
            fresh, tree.fresh = tree.fresh, []
            for node in fresh:
                self._propose_early(node)
            tree.list_children(floor)

    def _propose_early(self, node: Mark) -> None:
        """Propose the node's children before a model ranks it."""
        tree = self._tree
        # a chain of forced tokens is computed once, at its beginning
        forced = tree.forced.get(tree.parent(node), ())[1:] or self._rule.forced(tree, node)
        if forced:
            tree.forced[node], tree.covered[node] = forced, 1.0  # no other source proposes
            tree.propose(node, forced[:1], [1.0])
            return
        if self._copied is not None and node not in tree.copied:
            self._copied.propose(node)
        if node in tree.copied:
            self._propose(node)

    def _propose(self, node: Mark) -> None:
        """Propose the node's children with probabilities combined from all sources."""
        tree = self._tree
        ranked, copied = tree.ranked.get(node), tree.copied.get(node)
        source = ranked or copied
        assert source is not None, "a source has proposed children"
        ids, chances = source.ids, source.chances
        if ranked is not None and copied is not None:
            model = dict(zip(ids, chances, strict=True))
            ids, table = joint_features(model, dict(zip(copied.ids, copied.chances, strict=True)))
            chances = self._stats.acceptance.together(table).tolist()
            tree.joint[node] = ProposedChildren(ids, table, chances)
        if ranked is None:
            tree.covered[node] = min(sum(chances), 1.0)
        tree.propose(node, ids, chances)

    # --- progress of the target

    def _advance(self, tokens: Sequence[int]) -> None:
        """Move the root. Learn from the committed nodes, and keep the committed tokens' keys."""
        tree, path = self._tree, self._tree.walk(tokens)
        self._rule.commit(tokens)
        for node, token in zip(path, tokens, strict=False):
            if self._copied is not None:
                self._copied.learn(node, token)
        self._learn_ranks(list(zip(path, tokens, strict=False)))
        if self._copied is not None:
            self._copied.extend(tokens)
        below = [tree.token(tree.root), *tokens[:-1]]
        passed, stale = tree.advance(tokens)
        if self._row is not None:
            self._row.advance(below, passed, stale)
            self._silent += len(tokens)

    def _learn_ranks(self, path: Sequence[tuple[Mark, int]]) -> None:
        """Learn which children the target accepted at nodes that the draft has ranked."""
        acceptance, tables, ranks = self._stats.acceptance, [], list[int | None]()
        tree = self._tree
        for node, token in path:
            ranked, joint = tree.ranked.get(node), tree.joint.get(node)
            if ranked is None:
                continue
            tables.append(ranked.table)
            ranks.append(ranked.index_of(token))
            chance = 0.0
            if ranks[-1] is not None:
                listing = tree.listings[node]
                chance = math.exp(tree.rank(node) - listing.ranks[listing.ids.index(token)])
            self._hits += ((chance >= self._floor) - self._hits) / TUNING.hits_remembered
            if joint is not None:
                acceptance.observe_together(np.asarray(joint.table), joint.index_of(token))
        if ranks:
            acceptance.observe_path(np.array(tables), self._params.greedy, ranks)

    # --- prices

    def _read_prices(self) -> None:
        self._floor = self.prices.min_value()

    def _account(self, tokens: int, now: float) -> None:
        """Record the cost of these tokens, which sets the price of the next ones."""
        drafted = self.usage.seconds
        if self._accounted is not None:
            began, before = self._accounted
            self.prices.committed(tokens, Usage(now - began, drafted - before, self._bytes_up))
        self._accounted, self._bytes_up = (now, drafted), 0.0


class Draft(NamedTuple):
    """A loaded draft and its settings.

    model: ranks nodes; None for a draft without a model
    sequence: creates the sequence of a request on a row
    grammars: compiles grammars for the draft's tokenizer; None if the draft ignores rules
    """

    model: Model | None
    sequence: MakeSequence = own_sequence
    grammars: Grammars | None = None

    @property
    def make_rule(self) -> MakeRule:
        """A function that builds the rule of a request."""
        return no_rule if self.grammars is None else self.grammars.rule

    def proposer(
        self,
        row: int,
        stats: PairStats,
        prices: Prices,
        *,
        copies: bool = False,
        kind: int = MODEL,
        room: int = TUNING.room,
        clock: Callable[[], float] = time.perf_counter,
        beside: TargetText | None = None,
        make_rule: MakeRule | None = None,
    ) -> GrowingProposer:
        """Create the proposer of a row. Other arguments: see GrowingProposer and DraftRow.

        beside: the request's row at the target, for a draft that reads the target's features
        make_rule: builds the rules of requests, instead of the draft's own grammars
        """
        make_rule = make_rule or self.make_rule
        if self.model is None:
            return GrowingProposer(stats, prices, copies=copies, make_rule=make_rule)
        begin = partial(self.sequence, self.model, row, beside)
        ranks = DraftRow(self.model, stats.draft, begin, room=room, clock=clock)
        return GrowingProposer(stats, prices, ranks, copies=copies, kind=kind, make_rule=make_rule)
