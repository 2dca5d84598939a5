"""One row of a draft model: the keys of a request's tokens and of candidates after them, and the
request's token rule as its draft uses it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

from inference.backends import Model, Ranked, Segment
from inference.backends.sequence import ModelSequence
from inference.drafters.draft_tree import DraftTree
from inference.errors import InvalidRequest
from inference.loop.draft_tuning import TUNING
from inference.proposer import DraftUsage
from inference.sampling import SamplingParams
from inference.times import Times
from inference.token_rule import Adjustment, TokenRule
from inference.tree.growing_tree import PLACE, GrowingTree, Mark
from inference.tree.token_tree import TreeNodes

log = logging.getLogger(__name__)

T = TypeVar("T")

MakeRule: TypeAlias = Callable[[Sequence[int], SamplingParams], TokenRule | None]
"""Builds a request's rule from prompt and parameters; None for no rule. Raises InvalidRequest."""


def no_rule(prompt: Sequence[int], params: SamplingParams) -> None:
    """Return no rule, whatever the parameters."""


class DraftRule:
    """The rule of one request, if any: which tokens may follow a node, and which must.

    The target applies the rule in any case. So if the rule cannot be built or fails, the draft
    continues without it, which costs speed and never changes the output.
    """

    _rule: TokenRule | None

    def __init__(self, make: MakeRule, prompt: Sequence[int], params: SamplingParams) -> None:
        self._rule = None
        try:
            self._rule = make(prompt, params) if params.adjusts else None
        except (InvalidRequest, ImportError) as error:
            self._give_up(error)

    @property
    def adjusts(self) -> bool:
        """Whether the rule adjusts the draft's logits."""
        return self._rule is not None

    def commit(self, tokens: Sequence[int]) -> None:
        """Advance by committed tokens."""
        if self._rule is not None:
            self._rule.commit(tokens)

    def adjust(self, tree: TreeNodes, nodes: Sequence[int]) -> Adjustment:
        """Return the adjustment of logits at these nodes of a tree; see TokenRule.adjust()."""
        return self._ask(lambda rule: rule.adjust(tree, nodes), Adjustment.none(len(nodes)))

    def forced(self, tree: GrowingTree, node: Mark) -> Sequence[int]:
        """Return the tokens that must follow a node, such as a brace or a key that a grammar
        requires.
        """
        return self._ask(lambda rule: rule.forced(tree.path(node)), ())

    def allows(self, tree: GrowingTree, node: Mark, tokens: Sequence[int]) -> list[bool]:
        """Return for each token whether it may follow a node."""
        return self._ask(lambda rule: rule.allows(tree.path(node), tokens), [True] * len(tokens))

    def _ask(self, question: Callable[[TokenRule], T], otherwise: T) -> T:
        if self._rule is None:
            return otherwise
        try:
            return question(self._rule)
        except InvalidRequest as error:
            self._give_up(error)
            return otherwise

    def _give_up(self, error: Exception) -> None:
        self._rule = None
        log.warning("drafting without the rule of the text: %s", error)


class DraftRow:
    """A row of a draft model, which serves one request at a time.

    times: seconds of calls of one row
    begin: creates the sequence of a request on the row
    room: maximum nodes that are ranked at a time. The row's other slots hold committed tokens; once
        these no longer fit, the model is not called any more
    clock: returns seconds; only read before and after a call
    """

    def __init__(
        self,
        model: Model,
        times: Times,
        begin: Callable[[SamplingParams], ModelSequence],
        *,
        room: int = TUNING.room,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.model, self._begin = model, begin
        self._times, self._room, self._clock = times, room, clock
        self.usage = DraftUsage()
        nothing = [0], SamplingParams()
        self.open(*nothing, DraftRule(no_rule, *nothing), DraftTree(0, 0, 1))

    def open(
        self, prompt: Sequence[int], params: SamplingParams, rule: DraftRule, tree: DraftTree
    ) -> None:
        """Begin a request with its rule, without a call of the model."""
        self._rule, self._tree = rule, tree
        self._sequence = self._begin(params)
        # tokens to prefill in parts: the prompt without its last, and those committed meanwhile
        self._prompt = list(prompt[:-1]) if len(prompt) <= self.longest else []

    @property
    def longest(self) -> int:
        """Maximum length of a sequence that the model drafts for."""
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
        """Prefill the next part of the prompt in one call. Return False if none is left."""
        if not self.is_fed:
            start = self._sequence.length
            self._sequence.extend(self._prompt[start : start + self._chunk_size])
        return not self.is_fed

    def segment(self, nodes: Sequence[Mark]) -> Segment:
        """Return this row's segment of a call that ranks these nodes, and computes their keys."""
        tree, places = self._tree, _places(nodes)
        tree.keyed.update(nodes)
        segment = self._sequence.prepare_nodes(tree, places)
        if not (self._rule.adjusts and self.model.masks):
            return segment
        return segment._replace(rule=partial(self._rule.adjust, tree, places))

    def rank(self, segment: Segment, k: int) -> tuple[Ranked, float]:
        """Make a call of one segment. Return the k most likely children, and the call's seconds."""
        began = self._clock()
        [ranked] = self.model.rank([segment], k)
        return ranked, self._clock() - began

    def count(self, nodes: int, seconds: float) -> DraftUsage:
        """Record a call: the number of ranked nodes, and its seconds. Return both as usage."""
        used = DraftUsage(1, nodes, seconds)
        self._times.observe(1, self.computed(nodes), seconds)
        self.usage = self.usage.plus(used)
        return used

    def advance(self, tokens: Sequence[int], passed: Sequence[Mark], stale: Sequence[Mark]) -> None:
        """Commit tokens after the root, and keep their keys if computed. Call this before nodes are
        added to the tree, because these may reuse the places of removed nodes.

        passed: the nodes of the first tokens
        stale: other removed nodes, whose keys are freed
        """
        keyed = self._tree.keyed
        line, freed = ([node for node in nodes if node in keyed] for nodes in (passed, stale))
        if self.is_fed:
            self._sequence.advance(_places(line), tokens, _places(freed))
        else:
            self._prompt += tokens
        keyed.difference_update(line, freed)

    # --- seconds of calls

    def computed(self, width: int) -> int:
        """Return the nodes that the model computes in a call of this width, padding included."""
        return self.model.padded(1, width)[1]

    def seconds(self, width: int) -> float:
        """Return the expected seconds of a call of this width, padding included, but without the
        committed tokens whose keys are missing.
        """
        return self._times.seconds(1, self.computed(width))

    def whole_seconds(self, width: int) -> float:
        """Return the expected seconds including the committed tokens whose keys are missing, in as
        many calls as the model needs.
        """
        nodes, limit = width + self._sequence.length - self._sequence.cached, self.model.max_nodes
        return -(-nodes // limit) * self.seconds(min(nodes, limit))

    @property
    def _chunk_size(self) -> int:
        """Return the prompt tokens to prefill in a call, which takes at most part_seconds, or the
        time of two calls of one node.
        """
        size, limit = self.model.max_nodes, max(TUNING.part_seconds, 2 * self.seconds(1))
        while size > 1 and self.seconds(size) > limit:
            size //= 2
        return size


def _places(nodes: Sequence[Mark]) -> list[int]:
    return [node & PLACE for node in nodes]
