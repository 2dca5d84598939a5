"""A proposer on one row of a draft model. It keeps a best-first list of nodes and ranks the
likeliest.

It never waits for an answer. The list grows under what is known to be committed, and nodes worth
their price are sent. Committed tokens make one of its nodes the new root, and keep the keys below.
A call has three parts, so that a host can batch rows: choose, segment, take.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from inference.backends import Model, Ranked, Segment
from inference.backends.sequence import MakeSequence, ModelSequence
from inference.drafters.copy_proposer import CopyProposer, Passed
from inference.drafters.copy_source import CopySource
from inference.drafters.draft_tree import DraftNode
from inference.planner.acceptance import features
from inference.planner.copying import joint_features
from inference.planner.knowledge import Knowledge
from inference.planner.law import FloatArray
from inference.planner.prices import Prices
from inference.proposer import MODEL
from inference.sampling import SamplingParams
from inference.times import TRUSTED

WIDTH, WIDEST = 8, 32
"""Children named for a node, and most nodes ranked in one call."""

ROOM = 768
"""Ranked nodes whose keys the draft may hold beyond the committed tokens."""

WORTH_RANKING = 0.6
"""Children are listed for ranking from this part of the least value that is sent."""

PART_SECONDS = 0.25
"""Seconds of a call for a part of the prompt. Copies found meanwhile wait for it."""

TRIES_AGAIN = 64
"""Committed tokens after which a draft that has fallen silent is asked once more."""

HITS_REMEMBERED = 20.0
"""Moving average of the draft's hits: a token weighs 1/e after this many more."""

TIMES_KEPT = 16
"""Calls of the draft after which prices and measured times are read again."""


class Places:
    """The nodes that hold a KV slot, as a ModelSequence sees them: small indices that are
    reused.
    """

    def __init__(self) -> None:
        self.tokens, self.parents, self.depths = list[int](), list[int](), list[int]()
        self._free: list[int] = []

    @property
    def taken(self) -> int:
        return len(self.tokens) - len(self._free)

    def take(self, node: DraftNode, root: DraftNode) -> int:
        """Return a free place for this node, with its present depth below the root."""
        parent = -1 if node.parent is None or node.parent.place is None else node.parent.place
        node.depth = node.position - root.position
        node.place = self.put(node.token, parent, node.depth)
        return node.place

    def put(self, token: int, parent: int, depth: int) -> int:
        """Return a free place for this token, below the token in another place (-1: none)."""
        if not self._free:
            self._free.append(len(self.tokens))
            for column in (self.tokens, self.parents, self.depths):
                column.append(-1)
        place = self._free.pop()
        self.tokens[place], self.parents[place], self.depths[place] = token, parent, depth
        return place

    def free(self, places: Sequence[int]) -> None:
        self._free += places


class ModelProposer(CopyProposer):
    """A Proposer on one row of a draft model.

    room: nodes that may be ranked at a time. The row's slots beyond them are for the text: where
        it goes on behind them, the model is no longer called and copies go on
    clock: returns seconds; asked around a call only
    sequence: makes the sequence of each text on the row
    source: names children, too, before the model has ranked a node and beside it
    """

    listed = WORTH_RANKING

    _prompt: list[int]  # what is fed in parts: without its last token, with what came meanwhile
    _chosen: Sequence[DraftNode]
    _calling: Sequence[DraftNode]  # in the call that is under way
    _silent: int  # committed tokens since the last call
    _hits: float  # how often the draft named the target's token lately

    def __init__(
        self,
        model: Model,
        row: int,
        knowledge: Knowledge,
        prices: Prices,
        *,
        room: int = ROOM,
        clock: Callable[[], float] = time.perf_counter,
        kind: int = MODEL,
        source: CopySource | None = None,
        sequence: MakeSequence = ModelSequence,
    ) -> None:
        self._make_sequence = sequence
        self.kind, self.ranked = kind, 0  # nodes in the model's calls
        self._model, self._row, self._room, self._clock = model, row, room, clock
        self._call_seconds: dict[int, float] = {}
        super().__init__(knowledge, prices, source)

    def open(self, prompt: Sequence[int], params: SamplingParams, end: int | None = None) -> None:
        self._begin(prompt, params, 2**31 if end is None else end)
        self._prompt = list(prompt[:-1]) if len(prompt) <= self._longest else []

    def feed(self) -> bool:
        """Compute the keys of the next part of the prompt in one call; False when all are there."""
        if not self._is_fed:
            start = self._sequence.length
            self._sequence.extend(self._prompt[start : start + self._part])
        return not self._is_fed

    def work(self, now: float) -> bool:
        if self.feed():
            return True
        if not self.choose(now):
            return False
        self._call()
        return True

    def choose(self, now: float, most_seconds: float = math.inf) -> Sequence[DraftNode]:
        """Return the nodes that the next call ranks; none if no call is worth its price.

        A call takes at most `most_seconds`. segment() and take() follow, or another choose().
        """
        self._list_children()
        nodes = self._list.unranked.first(min(WIDEST, self._model.max_nodes, self._free))
        nodes = [node for node in nodes if node.position < self._longest]
        while nodes and self._whole_seconds(len(nodes)) > most_seconds:
            nodes = nodes[: len(nodes) // 2]
        again = self._silent >= TRIES_AGAIN and nodes[:1] == [self._list.root]
        call = self._seconds(1)
        overtaken = not self.prices.holds_target and call >= self._times.forward > 0
        if overtaken and self.calls >= TRUSTED:
            # a draft this slow never catches up with a target that is ahead
            arrives = self._times.arrival(now + call)
            nodes = self._outbox.in_time(nodes, arrives)
        root = self._list.root.log
        values = np.exp([node.log - root for node in nodes])
        uncovered = values * (1 - np.array([node.covered for node in nodes]))
        gains: list[float] = np.cumsum(self._gains(uncovered)).tolist()
        self._chosen = nodes[: self._width(nodes, gains, most_seconds)]
        if again and not self._chosen:
            self._chosen = [self._list.root]
        return self._chosen

    def segment(self) -> Segment:
        """Return this row's share of a call that ranks the chosen nodes. The call is now under
        way.
        """
        self._calling = self._chosen
        root = self._list.root
        places = [self._places.take(node, root) for node in self._calling]
        return self._sequence.prepare_nodes(self._places, [*places, *self._more_places()])

    def take(self, ranked: Ranked, seconds: float) -> None:
        """Take the result of the call, which took `seconds`."""
        nodes, self._calling, self._chosen = self._calling, [], []
        self._known.draft.observe(self._computed(len(ranked.ids)), seconds)
        self.calls, self.ranked = self.calls + 1, self.ranked + len(ranked.ids)
        self.drafting += seconds
        self._silent = 0
        if self.calls % TIMES_KEPT == 0 or self.calls < TIMES_KEPT:
            self._look()
        self._name_ranked(nodes, ranked)

    def _begin(self, prompt: Sequence[int], params: SamplingParams, end: int) -> None:
        self._sequence = self._make_sequence(self._model, self._row, params)
        self._places = Places()
        self._chosen, self._calling, self._prompt = [], [], []
        self._silent, self._hits = 0, 1.0
        super()._begin(prompt, params, end)

    def _look(self) -> None:
        """Read prices and times again. They change slowly."""
        super()._look()
        self._call_seconds.clear()

    @property
    def _is_fed(self) -> bool:
        """Whether the text's keys are there, or will never be: it has outgrown the row."""
        return not self._sequence.length < len(self._prompt) <= self._longest

    @property
    def _part(self) -> int:
        """Tokens of the prompt in one call: as many as it takes PART_SECONDS for, or the time of
        two calls of one node.
        """
        part, most = self._model.max_nodes, max(PART_SECONDS, 2 * self._seconds(1))
        while part > 1 and self._seconds(part) > most:
            part //= 2
        return part

    @property
    def _longest(self) -> int:
        """Length of the longest text that the model drafts for."""
        return self._model.capacity - self._room

    @property
    def _free(self) -> int:
        """Number of nodes that still have a free slot."""
        taken = self._places.taken
        return min(self._room, self._model.capacity - self._sequence.length) - taken

    def _call(self) -> None:
        """Make one call of the model for the chosen nodes."""
        began = self._clock()
        ranked = self._model.rank([self.segment()], WIDTH)[0]
        self.take(ranked, self._clock() - began)

    def _more_places(self) -> list[int]:
        """Places of what the call computes beside the chosen nodes."""
        return []

    def _name_ranked(self, nodes: Sequence[DraftNode], ranked: Ranked) -> None:
        """Name the children of nodes that a call has ranked."""
        depths = [node.depth for node in nodes]
        tables = features(ranked.scores, depths, self._params.greedy)
        edges = self._known.acceptance.edges_of(tables, ranked.scores, self._params.greedy)
        for node, ids, table, row in zip(nodes, ranked.ids.tolist(), tables, edges, strict=True):
            node.named, node.features = ids, table
            ids, row = self._with_copies(node, row)
            order = np.argsort(-row, kind="stable")
            logs = node.log + np.log(np.maximum(row[order], 1e-300))
            self._list.name(node, [ids[index] for index in order], logs.tolist())

    # --- what the target says

    def _advance(self, fresh: Sequence[int]) -> list[Passed]:
        """Re-root: keep the keys of committed tokens, and free those of pruned nodes."""
        passed = super()._advance(fresh)
        line = [root.place for root, _, _ in passed if root.place is not None]
        gone = [node.place for one in passed for node in one.pruned if node.place is not None]
        tokens = [root.token for root, _, _ in passed]
        if self._is_fed:
            self._sequence.advance(line, tokens, gone)
        else:
            self._prompt += tokens
        self._places.free(line + gone)
        if self._list.root.place is not None:
            self._places.parents[self._list.root.place] = -1
        self._silent += len(fresh)
        ranked = [(root, token) for root, token, _ in passed if root.features is not None]
        if ranked:
            self._learn_ranks(ranked)
        return passed

    def _learn_ranks(self, path: Sequence[tuple[DraftNode, int]]) -> None:
        """Learn which children the target took at nodes that the draft has ranked."""
        ranks, acceptance = list[int | None](), self._known.acceptance
        for node, token in path:
            named = token in node.named
            ranks.append(node.named.index(token) if named else None)
            chance = math.exp(node.logs[node.ids.index(token)] - node.log) if named else 0.0
            self._hits += ((chance >= self._floor) - self._hits) / HITS_REMEMBERED
            if node.joint is not None:
                ids, table = node.joint
                acceptance.copying.observe_together(
                    table, ids.index(token) if token in ids else None
                )
        tables = np.array([node.features for node, _ in path])
        acceptance.observe_path(tables, self._params.greedy, ranks)

    def _with_copies(self, node: DraftNode, edges: FloatArray) -> tuple[list[int], FloatArray]:
        """Return the node's children and their chances, with what is copied taken in: [k]."""
        if node.copied is None:
            return node.named, edges
        model = dict(zip(node.named, edges.tolist(), strict=True))
        copied = dict(zip(node.copied.ids, node.copied.chances, strict=True))
        node.joint = joint_features(model, copied)
        ids, table = node.joint
        return ids, self._known.acceptance.copying.together(table)

    # --- what is worth it

    def _seconds(self, width: int) -> float:
        """Expected seconds of a call of this width, padding included. Committed tokens that were
        not fed are not counted.
        """
        if width not in self._call_seconds:
            self._call_seconds[width] = self._known.draft.seconds(self._computed(width))
        return self._call_seconds[width]

    def _computed(self, width: int) -> int:
        """Nodes that the model computes in a call of this width."""
        return self._model.padded(1, width)[1]

    def _whole_seconds(self, width: int) -> float:
        """Expected seconds with committed tokens that were not fed, in as many calls as the
        model needs.
        """
        nodes, most = width + self._sequence.length - self._sequence.cached, self._model.max_nodes
        return -(-nodes // most) * self._seconds(min(nodes, most))

    def _width(
        self, nodes: Sequence[DraftNode], gains: Sequence[float], most_seconds: float
    ) -> int:
        """How many of these nodes the next call ranks, in at most `most_seconds`; 0 for no call.

        gains: expected tokens of ranking the first node, the first two, ...
        """
        return self.prices.width(gains, self._seconds)

    def _gains(self, values: NDArray[np.float64]) -> NDArray[np.float64]:  # [n] -> [n]
        """Expected nodes worth sending that ranking each of these finds.

        The rates of the ranks are scaled down by how often the draft hit lately.
        """
        rates = self._known.acceptance.mean_edges(WIDTH)
        rates = rates * min(self._hits / float(rates.sum()), 1.0)
        found = values[:, None] * rates - self._floor / 2
        return np.asarray(np.maximum(found, 0.0).sum(axis=1))
