"""One row of a draft model: the keys of one text, and of nodes below it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from inference.backends import Masks, Model, Ranked, Segment
from inference.draft_tuning import TUNING
from inference.drafters.draft_rule import DraftRule, no_rule
from inference.drafters.draft_tree import DraftTree
from inference.growing_tree import PLACE, Mark
from inference.proposer import DraftUsage
from inference.sampling import SamplingParams
from inference.times import Times
from inference.tree import TreeNodes


class RowSequence(Protocol):
    """The keys of a text on the row: a ModelSequence."""

    cached: int

    @property
    def length(self) -> int: ...
    def extend(self, tokens: Sequence[int]) -> None: ...
    def prepare_nodes(self, tree: TreeNodes, nodes: Sequence[int]) -> Segment: ...
    def advance(self, nodes: Sequence[int], tokens: Sequence[int], gone: Sequence[int]) -> None: ...


class DraftRow:
    """A row of a draft model, for one text after the other.

    times: of calls of one row
    begin: begins a text on the row
    masks: what stands for tokens that are not known yet; None for a draft that knows none
    room: nodes that may be ranked at a time. The row's slots beyond them are for the text: where
        it goes on behind them, the model is no longer called
    clock: returns seconds; asked around a call only
    """

    def __init__(
        self,
        model: Model,
        times: Times,
        begin: Callable[[SamplingParams], RowSequence],
        *,
        masks: Masks | None = None,
        room: int = TUNING.room,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.model, self.masks, self._begin = model, masks, begin
        self._times, self._room, self._clock = times, room, clock
        self._call_seconds: dict[int, float] = {}
        self.usage = DraftUsage()
        nothing = [0], SamplingParams()
        self.open(*nothing, DraftRule(no_rule, *nothing), DraftTree(0, 0, 1))

    def open(
        self, prompt: Sequence[int], params: SamplingParams, rule: DraftRule, tree: DraftTree
    ) -> None:
        """Begin a text, whose tokens are chosen by this rule. Nothing is computed."""
        self._rule, self._tree = rule, tree
        self._sequence = self._begin(params)
        # fed in parts: the prompt without its last token, with what came meanwhile
        self._prompt = list(prompt[:-1]) if len(prompt) <= self.longest else []

    @property
    def longest(self) -> int:
        """Length of the longest text that the model drafts for."""
        return self.model.capacity - self._room

    @property
    def free(self) -> int:
        """Number of nodes that the next call may rank."""
        slots = min(self._room, self.model.capacity - self._sequence.length) - len(self._tree.keyed)
        return min(TUNING.widest, self.model.max_nodes, slots)

    @property
    def is_fed(self) -> bool:
        """Whether the text's keys are there, or will never be: it has outgrown the row."""
        return not self._sequence.length < len(self._prompt) <= self.longest

    def feed(self) -> bool:
        """Compute the keys of the next part of the prompt in one call; False when all are there."""
        if not self.is_fed:
            start = self._sequence.length
            self._sequence.extend(self._prompt[start : start + self._part])
        return not self.is_fed

    def segment(self, nodes: Sequence[Mark]) -> Segment:
        """Return this row's share of a call that ranks these nodes. It has their keys then."""
        tree, places = self._tree, _places(nodes)
        tree.keyed.update(nodes)
        segment = self._sequence.prepare_nodes(tree, places)
        if not (self._rule.adjusts and self.model.masks):
            return segment
        return segment._replace(rule=partial(self._rule.adjust, tree, places))

    def rank(self, segment: Segment, k: int) -> tuple[Ranked, float]:
        """Make the call of one segment; returns the k likeliest children, and its seconds."""
        began = self._clock()
        [ranked] = self.model.rank([segment], k)
        return ranked, self._clock() - began

    def count(self, ranked: Ranked, seconds: float) -> DraftUsage:
        """Record a call and what it took."""
        used = DraftUsage(1, len(ranked.ids), seconds)
        self._times.observe(1, self.computed(used.nodes), seconds)
        self.usage = self.usage.plus(used)
        return used

    def advance(self, tokens: Sequence[int], passed: Sequence[Mark], gone: Sequence[Mark]) -> None:
        """Commit the tokens below the root, and keep their keys where they have some. To be called
        before the tree has further nodes, which may have the places of these.

        passed: the nodes of the first tokens
        gone: other nodes that are gone, whose keys are freed
        """
        keyed = self._tree.keyed
        line, freed = ([node for node in nodes if node in keyed] for nodes in (passed, gone))
        if self.is_fed:
            self._sequence.advance(_places(line), tokens, _places(freed))
        else:
            self._prompt += tokens
        keyed.difference_update(line, freed)

    def release(self, nodes: Sequence[Mark]) -> None:
        """Free the keys of these nodes."""
        self._sequence.advance([], [], _places(nodes))
        self._tree.keyed.difference_update(nodes)

    # --- what calls take

    def forget_times(self) -> None:
        """Let the measured times be read again."""
        self._call_seconds.clear()

    def computed(self, width: int) -> int:
        """Nodes that the model computes in a call of this width."""
        return self.model.padded(1, width)[1]

    def seconds(self, width: int) -> float:
        """Expected seconds of a call of this width, padding included. Committed tokens that were
        not fed are not counted.
        """
        if width not in self._call_seconds:
            self._call_seconds[width] = self._times.seconds(1, self.computed(width))
        return self._call_seconds[width]

    def whole_seconds(self, width: int) -> float:
        """Expected seconds with committed tokens that were not fed, in as many calls as the
        model needs.
        """
        nodes, most = width + self._sequence.length - self._sequence.cached, self.model.max_nodes
        return -(-nodes // most) * self.seconds(min(nodes, most))

    @property
    def _part(self) -> int:
        """Tokens of the prompt in one call: as many as it takes `part_seconds` for, or the time of
        two calls of one node.
        """
        part, most = self.model.max_nodes, max(TUNING.part_seconds, 2 * self.seconds(1))
        while part > 1 and self.seconds(part) > most:
            part //= 2
        return part


def _places(nodes: Sequence[Mark]) -> list[int]:
    """By which a sequence knows these nodes of the tree."""
    return [node & PLACE for node in nodes]
