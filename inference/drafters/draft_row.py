"""One row of a draft model, with the keys of a text and of nodes below it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from inference.backends import Masks, Model, Ranked, Segment
from inference.backends.sequence import ModelSequence
from inference.drafters.draft_rule import DraftRule, no_rule
from inference.drafters.draft_tree import DraftTree
from inference.loop.draft_tuning import TUNING
from inference.proposer import DraftUsage
from inference.sampling import SamplingParams
from inference.times import Times
from inference.tree.growing_tree import PLACE, Mark


class DraftRow:
    """A row of a draft model, which serves one text at a time.

    times: of calls of one row
    begin: makes the sequence of a text on the row
    masks: the model's mask tokens; None for a model without
    room: maximum nodes that are ranked at a time. The row's other slots are for the text: for a
        longer text the model is no longer called
    clock: returns seconds; read around a call only
    """

    def __init__(
        self,
        model: Model,
        times: Times,
        begin: Callable[[SamplingParams], ModelSequence],
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
        """Begin a text with its rule. Makes no call."""
        self._rule, self._tree = rule, tree
        self._sequence = self._begin(params)
        # prefilled in parts: the prompt without its last token, and tokens committed meanwhile
        self._prompt = list(prompt[:-1]) if len(prompt) <= self.longest else []

    @property
    def longest(self) -> int:
        """Maximum length of a text that the model drafts for."""
        return self.model.capacity - self._room

    @property
    def free(self) -> int:
        """Maximum nodes that the next call may rank."""
        slots = min(self._room, self.model.capacity - self._sequence.length) - len(self._tree.keyed)
        return min(TUNING.widest, self.model.max_nodes, slots)

    @property
    def is_fed(self) -> bool:
        """Whether the prompt is prefilled, or too long for the row."""
        return not self._sequence.length < len(self._prompt) <= self.longest

    def feed(self) -> bool:
        """Prefill the next part of the prompt in one call; False when none is left."""
        if not self.is_fed:
            start = self._sequence.length
            self._sequence.extend(self._prompt[start : start + self._part])
        return not self.is_fed

    def segment(self, nodes: Sequence[Mark]) -> Segment:
        """Return this row's segment of a call that ranks these nodes and computes their keys."""
        tree, places = self._tree, _places(nodes)
        tree.keyed.update(nodes)
        segment = self._sequence.prepare_nodes(tree, places)
        if not (self._rule.adjusts and self.model.masks):
            return segment
        return segment._replace(rule=partial(self._rule.adjust, tree, places))

    def rank(self, segment: Segment, k: int) -> tuple[Ranked, float]:
        """Make a call of one segment. Returns the k most likely children, and its seconds."""
        began = self._clock()
        [ranked] = self.model.rank([segment], k)
        return ranked, self._clock() - began

    def count(self, ranked: Ranked, seconds: float) -> DraftUsage:
        """Record a call and its seconds."""
        used = DraftUsage(1, len(ranked.ids), seconds)
        self._times.observe(1, self.computed(used.nodes), seconds)
        self.usage = self.usage.plus(used)
        return used

    def advance(self, tokens: Sequence[int], passed: Sequence[Mark], gone: Sequence[Mark]) -> None:
        """Commit the tokens below the root, with those of their keys that are computed. Call it
        before nodes are added to the tree: they may reuse the places of these.

        passed: the nodes of the first tokens
        gone: other removed nodes, whose keys are freed
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

    # --- seconds of calls

    def forget_times(self) -> None:
        """Read the measured times again, when they are next needed."""
        self._call_seconds.clear()

    def computed(self, width: int) -> int:
        """Nodes that the model computes in a call of this width."""
        return self.model.padded(1, width)[1]

    def seconds(self, width: int) -> float:
        """Expected seconds of a call of this width, padding included, without the committed tokens
        whose keys are missing.
        """
        if width not in self._call_seconds:
            self._call_seconds[width] = self._times.seconds(1, self.computed(width))
        return self._call_seconds[width]

    def whole_seconds(self, width: int) -> float:
        """Expected seconds with the committed tokens whose keys are missing, in as many calls as
        the model needs.
        """
        nodes, most = width + self._sequence.length - self._sequence.cached, self.model.max_nodes
        return -(-nodes // most) * self.seconds(min(nodes, most))

    @property
    def _part(self) -> int:
        """Tokens of the prompt in one call, which takes at most part_seconds, or the time of two
        calls of one node.
        """
        part, most = self.model.max_nodes, max(TUNING.part_seconds, 2 * self.seconds(1))
        while part > 1 and self.seconds(part) > most:
            part //= 2
        return part


def _places(nodes: Sequence[Mark]) -> list[int]:
    """The places of these nodes, by which a sequence identifies them."""
    return [node & PLACE for node in nodes]
