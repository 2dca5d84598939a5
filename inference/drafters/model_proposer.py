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
from inference.backends.sequence import ModelSequence
from inference.candidates import MOST_CANDIDATES, Nodes
from inference.cost.objective import Effort
from inference.drafters.outbox import Outbox
from inference.drafters.prospects import Prospect, Prospects
from inference.drafters.timetable import Timetable
from inference.planner.acceptance import features
from inference.planner.knowledge import Knowledge
from inference.planner.prices import MESSAGE_BYTES, NODE_BYTES, Prices
from inference.proposer import MODEL, Notice
from inference.sampling import SamplingParams
from inference.times import TRUSTED

WIDTH, WIDEST = 8, 32
"""Children named for a node, and most nodes ranked in one call."""

ROOM = 768
"""Ranked nodes whose keys the draft may hold beyond the committed tokens."""

WORTH_RANKING = 0.6
"""Children are listed for ranking from this part of the least value that is sent."""

TRIES_AGAIN = 64
"""Committed tokens after which a draft that has fallen silent is asked once more."""

HITS_REMEMBERED = 20.0
"""Moving average of the draft's hits: a token weighs 1/e after this many more."""

TIMES_KEPT = 16
"""Calls of the draft after which prices and measured times are read again."""


class _Places:
    """The nodes that hold a KV slot, as a ModelSequence sees them: small indices that are
    reused.
    """

    def __init__(self) -> None:
        self.tokens, self.parents, self.depths = list[int](), list[int](), list[int]()
        self._free: list[int] = []

    @property
    def taken(self) -> int:
        return len(self.tokens) - len(self._free)

    def take(self, node: Prospect, root: Prospect) -> int:
        """Return a free place for this node, with its present depth below the root."""
        parent = -1 if node.parent is None or node.parent.place is None else node.parent.place
        if not self._free:
            self._free.append(len(self.tokens))
            for column in (self.tokens, self.parents, self.depths):
                column.append(-1)
        place = node.place = self._free.pop()
        self.tokens[place], self.parents[place] = node.token, parent
        self.depths[place] = node.depth = node.position - root.position
        return place

    def free(self, places: Sequence[int]) -> None:
        self._free += places


class ModelProposer:
    """A Proposer on one row of a draft model.

    room: nodes that may be ranked at a time; the row has so many slots beyond its longest text
    clock: returns seconds; asked around a call only
    """

    _prompt: Sequence[int]  # without its last token
    _chosen: Sequence[Prospect]
    _calling: Sequence[Prospect]  # under way: nothing moves meanwhile
    _heard: list[tuple[int, Sequence[int], float, Notice]]  # while a call was under way
    _call_seconds: dict[int, float]
    _silent: int  # committed tokens since the last call
    _hits: float  # how often the draft named the target's token lately
    _accounted: tuple[float, float] | None  # when, and seconds drafted by then
    _bytes_up: float

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
    ) -> None:
        self.kind = kind
        self.calls = self.ranked = self.proposed = 0  # calls, nodes in them, nodes sent
        self.drafting = 0.0  # seconds
        self._model, self._row, self._known, self.prices = model, row, knowledge, prices
        self._room, self._clock, self._call_seconds = room, clock, {}
        self._begin([0], SamplingParams(), 1)

    def open(self, prompt: Sequence[int], params: SamplingParams, end: int | None = None) -> None:
        self.begin(prompt, params, end)
        while self.feed():
            pass

    def begin(self, prompt: Sequence[int], params: SamplingParams, end: int | None = None) -> None:
        """Open a text without a model call. feed() makes the calls, before anything else."""
        longest = self._model.capacity - self._room
        self._begin(prompt, params, longest if end is None else min(end, longest))
        self._prompt = prompt[:-1]

    def feed(self) -> bool:
        """Compute the keys of the next part of the prompt in one call; False when all are there."""
        start, most = self._sequence.length, self._model.max_nodes
        self._sequence.extend(self._prompt[start : start + most])
        return self._sequence.length < len(self._prompt)

    def hear(self, position: int, tokens: Sequence[int], now: float, notice: Notice) -> None:
        """Take in committed tokens, after the call that is under way. Raises ValueError for a
        gap.
        """
        if self._calling:
            self._heard.append((position, tokens, now, notice))
            return
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
        if not self.choose(now):
            return False
        self._call()
        return True

    def choose(self, now: float, most_seconds: float = math.inf) -> Sequence[Prospect]:
        """Return the nodes that the next call ranks; none if no call is worth its price.

        A call takes at most `most_seconds`. segment() and take() follow, or another choose().
        """
        self._list_children()
        nodes = self._list.unranked.first(min(WIDEST, self._model.max_nodes, self._free))
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
        gains: list[float] = np.cumsum(self._gains(values)).tolist()
        self._chosen = nodes[: self.prices.width(gains, self._seconds)]
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
        return self._sequence.prepare_nodes(self._places, places)

    def take(self, ranked: Ranked, seconds: float) -> None:
        """Take the result of the call, which took `seconds`."""
        nodes, self._calling, self._chosen = self._calling, [], []
        self._known.draft.observe(len(nodes), seconds)
        self.calls, self.ranked = self.calls + 1, self.ranked + len(nodes)
        self.drafting += seconds
        self._silent = 0
        if self.calls % TIMES_KEPT == 0 or self.calls < TIMES_KEPT:
            self._look()
        depths = [node.depth for node in nodes]
        tables = features(ranked.scores, depths, self._params.greedy)
        edges = self._known.acceptance.edges_of(tables, ranked.scores, self._params.greedy)
        order = np.argsort(-edges, axis=1, kind="stable")
        logs = np.log(np.maximum(np.take_along_axis(edges, order, 1), 1e-300))
        logs += np.array([node.log for node in nodes])[:, None]
        sorted_ids = np.take_along_axis(ranked.ids, order, 1).tolist()
        for node, named, table, ids, row in zip(
            nodes, ranked.ids.tolist(), tables, sorted_ids, logs.tolist(), strict=True
        ):
            node.named, node.features = named, table
            self._list.name(node, ids, row)
        heard, self._heard = self._heard, []
        for told in heard:
            self.hear(*told)

    def flush(self, now: float, next_number: Callable[[], int]) -> Nodes | None:
        if self._calling:
            return None
        self._list_children()
        proposals = self._outbox.take(now, self._floor, MOST_CANDIDATES, next_number)
        if not proposals:
            return None
        self.proposed += len(proposals)
        self._bytes_up += MESSAGE_BYTES + NODE_BYTES * len(proposals)
        return Nodes(self._list.root.position, proposals, self.kind)

    def resend(self) -> None:
        self._outbox.resend()

    def path(self, most: int) -> list[int]:
        """Return the draft's own continuation, ranking nodes as far as there is room.

        A text goes on with it while the target is away. Its nodes are sent whatever their value.
        """
        node, said = self._list.root, list[int]()
        while len(said) < most and node.position < self._list.end - 2:
            if node.place is None:
                if self._free < 1 or self._calling:
                    break
                self._chosen = [node]
                self._call()
            node = self._list.child(node, node.named[0])
            said.append(node.token)
            self._outbox.insist(node)
        return said

    def close(self) -> None:
        self._begin([0], SamplingParams(), 1)

    def _begin(self, prompt: Sequence[int], params: SamplingParams, end: int) -> None:
        """Reset everything but what was measured, for a text of which the prompt is known."""
        known = self._known
        self._params = params
        self._sequence = ModelSequence(self._model, self._row, params)
        self._list, self._places = Prospects(prompt[-1], len(prompt) - 1, end), _Places()
        self._times = Timetable(known.target.seconds(1, 1), known.link.seconds(0))
        self._outbox = Outbox(self._list, self._times)
        self._chosen, self._calling, self._heard, self._prompt = [], [], [], []
        self._silent, self._hits = 0, 1.0
        self._accounted, self._bytes_up = None, 0.0
        self._look()

    def _look(self) -> None:
        """Read prices and times again. They change slowly."""
        self._call_seconds.clear()
        self._floor = self.prices.least_value()

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

    # --- what the target says

    def _advance(self, tokens: Sequence[int]) -> None:
        """Re-root: keep the keys of committed tokens, and free those of pruned nodes."""
        line, committed, gone = list[int](), list[int](), list[int]()
        path = list[tuple[Prospect, int]]()
        for token in tokens:
            root = self._list.root
            if root.features is not None:
                path.append((root, token))
            committed.append(root.token)
            if root.place is not None:
                line.append(root.place)
            pruned = self._list.advance(token)
            gone += [node.place for node in pruned if node.place is not None]
        self._sequence.advance(line, committed, gone)
        self._places.free(line + gone)
        if self._list.root.place is not None:
            self._places.parents[self._list.root.place] = -1
        self._silent += len(tokens)
        if path:
            self._learn(path)

    def _learn(self, path: Sequence[tuple[Prospect, int]]) -> None:
        """Learn which children the target took at nodes that the draft has ranked."""
        ranks = list[int | None]()
        for node, token in path:
            named = token in node.named
            ranks.append(node.named.index(token) if named else None)
            chance = math.exp(node.logs[node.ids.index(token)] - node.log) if named else 0.0
            self._hits += ((chance >= self._floor) - self._hits) / HITS_REMEMBERED
        tables = np.array([node.features for node, _ in path])
        self._known.acceptance.observe_path(tables, self._params.greedy, ranks)

    def _account(self, tokens: int, now: float) -> None:
        """Record what these tokens took, which sets the price of the next ones."""
        if self._accounted is not None:
            began, drafted = self._accounted
            self.prices.committed(
                tokens, Effort(now - began, self.drafting - drafted, self._bytes_up)
            )
        self._accounted, self._bytes_up = (now, self.drafting), 0.0

    # --- what is worth it

    def _list_children(self) -> None:
        self._list.list_children(WORTH_RANKING * self._floor)

    def _seconds(self, width: int) -> float:
        """Expected seconds of a call of this width. Committed tokens that were not fed are not
        counted.
        """
        if width not in self._call_seconds:
            self._call_seconds[width] = self._known.draft.seconds(width)
        return self._call_seconds[width]

    def _whole_seconds(self, width: int) -> float:
        """Expected seconds with committed tokens that were not fed, in as many calls as the
        model needs.
        """
        nodes, most = width + self._sequence.length - self._sequence.cached, self._model.max_nodes
        return -(-nodes // most) * self._seconds(min(nodes, most))

    def _gains(self, values: NDArray[np.float64]) -> NDArray[np.float64]:  # [n] -> [n]
        """Expected nodes worth sending that ranking each of these finds.

        The rates of the ranks are scaled down by how often the draft hit lately.
        """
        rates = self._known.acceptance.mean_edges(WIDTH)
        rates = rates * min(self._hits / float(rates.sum()), 1.0)
        found = values[:, None] * rates - self._floor / 2
        return np.asarray(np.maximum(found, 0.0).sum(axis=1))
