"""A proposer for synchronous rounds: one whole tree of a fixed policy under each committed root.

The tree is complete when work() has nothing more to do. The loop then sends it and tells the target
to go.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from inference.backends import Model, Ranked
from inference.backends.sequence import ModelSequence
from inference.candidates import BASE, Nodes, Proposal
from inference.drafters.growth import Growth
from inference.drafters.tree_policies import Budget, Policy
from inference.proposer import MODEL, Notice
from inference.sampling import SamplingParams
from inference.tree import TokenTree


class RoundProposer:
    """A Proposer on one row of a draft model.

    room: nodes that the next tree may have; the target tells it anew each round
    """

    kind = MODEL

    _root: int  # the last committed token
    _position: int  # of the root
    _end: int
    _grown: Growth | None  # under this root
    _order: list[int]  # nodes of the tree that are sent

    def __init__(self, model: Model, policy: Policy, *, room: int, row: int = 0) -> None:
        self.room = room
        self.calls, self.drafting = 0, 0.0  # calls of the model, and their seconds
        self._model, self._policy, self._row = model, policy, row
        self._begin([0], SamplingParams(), 1)

    def open(self, prompt: Sequence[int], params: SamplingParams, end: int | None = None) -> None:
        longest = self._model.capacity - self._policy.most_ranked
        self._begin(prompt, params, longest if end is None else min(end, longest))
        if len(prompt) <= longest:
            self._prompt = list(prompt[:-1])

    def hear(self, position: int, tokens: Sequence[int], now: float, notice: Notice) -> None:
        expected = self._position + 1
        if position > expected:
            raise ValueError(f"tokens are heard in order: got position {position}, not {expected}")
        self.room = notice.room
        fresh = tokens[expected - position :]
        if not fresh:
            return
        if self._is_fed:
            self._commit(fresh)
        else:
            self._prompt += [self._root, *fresh[:-1]]
        self._root, self._position = fresh[-1], self._position + len(fresh)
        self._grown, self._sent = None, False

    def _commit(self, fresh: Sequence[int]) -> None:
        """Keep the keys of these tokens that the tree has, and let the others be computed."""
        tree = TokenTree.chain([self._root]) if self._grown is None else self._grown.tree
        path, node = list[int](), 0
        for token in fresh[:-1]:
            below = tree.child(node, token)
            if below is None:
                break
            path.append(node := below)
        self._sequence.commit(tree, path)
        made_alone = fresh[len(path) : -1]
        if made_alone:
            self._sequence.commit(TokenTree.chain(made_alone), range(1, len(made_alone)))

    def work(self, now: float) -> bool:
        if not self._is_fed:
            start = self._sequence.length
            self._sequence.extend(self._prompt[start : start + self._model.max_nodes])
        if not self._is_fed:
            return True
        if self._grown is not None:
            return False
        room = max(self._end - 2 - self._position, 0)  # the target adds a token of its own
        budget = Budget(self.room, room) if room else Budget(0, 0)
        grown = self._policy.grow(self._root, budget, self._rank)
        self._grown, self._order = grown, grown.best()
        return True

    def flush(self, now: float, next_number: Callable[[], int]) -> Nodes | None:
        grown = self._grown
        if grown is None or self._sent or len(self._order) < 2:
            return None
        self._sent = True
        numbers, proposals = {0: BASE}, list[Proposal]()
        for node in self._order[1:]:
            above, numbers[node] = grown.parents[node], next_number()
            chance = grown.values[node] / grown.values[above]
            proposals.append(
                Proposal(numbers[node], numbers[above], int(grown.tokens[node]), chance)
            )
        return Nodes(self._position, proposals, self.kind)

    def resend(self) -> None:
        self._sent = False

    def close(self) -> None:
        self._begin([0], SamplingParams(), 1)

    def _begin(self, prompt: Sequence[int], params: SamplingParams, end: int) -> None:
        self._sequence = ModelSequence(self._model, self._row, params)
        self._root, self._position, self._end = prompt[-1], len(prompt) - 1, end
        self._grown, self._order, self._sent, self._prompt = None, [], False, list[int]()

    @property
    def _is_fed(self) -> bool:
        """Whether the prompt's keys are there, or will never be: the text has outgrown the row."""
        longest = self._model.capacity - self._policy.most_ranked
        return not self._sequence.length < len(self._prompt) < longest

    def _rank(self, tree: TokenTree, nodes: Sequence[int], k: int) -> Ranked:
        began = time.perf_counter()
        ranked = self._sequence.rank(tree, nodes, k)
        self.calls, self.drafting = self.calls + 1, self.drafting + time.perf_counter() - began
        return ranked
