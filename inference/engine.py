"""The target's side: rows of one model, handed to sessions; a session verifies trees or decodes alone.

Calls are made one at a time, from one thread; who needs several sessions at once interleaves their calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inference.accept import Verdict, accept_match
from inference.backends import Model
from inference.errors import Busy, InvalidRequest, LimitExceeded, Mismatch
from inference.sampling import SamplingParams
from inference.sequence import ModelSequence
from inference.tree import TokenTree


class TargetSession:
    """One sequence of the target: the committed tokens, the last of which is the root of the next tree."""

    def __init__(self, engine: Engine, row: int, prompt: Sequence[int], params: SamplingParams) -> None:
        self._engine, self.row = engine, row
        self._sequence = ModelSequence(engine.model, row, params)
        self._prompt = list(prompt[:-1])
        self.root = prompt[-1]

    @property
    def length(self) -> int:
        """Committed tokens, the root included."""
        return len(self._prompt) + self._sequence.length + 1

    def prefill(self) -> Iterator[None]:
        """Feed the prompt in chunks, one a step, so that others' calls fit between them."""
        while self._prompt:
            chunk, self._prompt = self._prompt[: self._engine.model.max_nodes], self._prompt[self._engine.model.max_nodes :]
            self._sequence.extend(chunk)
            yield

    def verify(self, tree: TokenTree) -> Verdict:
        """Choose at every node, commit the accepted path; the verdict's next token is the new root."""
        self._check(tree)
        verdict = accept_match(tree, self._sequence.choose(tree))
        self._sequence.commit(tree, verdict.path)
        self.root = verdict.next_token
        return verdict

    def step(self) -> int:
        """One token of the target alone."""
        return self.verify(TokenTree.chain([self.root])).next_token

    def _check(self, tree: TokenTree) -> None:
        engine = self._engine
        if tree.tokens[0] != self.root:
            raise Mismatch(f"the tree's root is token {tree.tokens[0]}, the last committed token is {self.root}")
        if tree.tokens.max() >= engine.vocabulary:
            raise InvalidRequest(f"token id {tree.tokens.max()} is outside the vocabulary of {engine.vocabulary}")
        if len(tree) > engine.max_tree_nodes:
            raise LimitExceeded(f"a tree of {len(tree)} nodes, the root included: at most {engine.max_tree_nodes} are taken")
        if self.length + int(tree.depths.max()) + 1 > engine.sequence_length:
            deep = f"{self.length} committed tokens and a tree {tree.depths.max()} deep"
            raise LimitExceeded(f"{deep} do not fit the sequence length of {engine.sequence_length} with the token chosen below it")


class Engine:
    """Free rows of a model; raises LimitExceeded for a session that could not be served.

    max_tree_nodes counts the root; vocabulary: ids the tokenizer knows.
    """

    def __init__(self, model: Model, *, sequence_length: int, max_tree_nodes: int, vocabulary: int) -> None:
        self.model, self.sequence_length = model, sequence_length
        self.max_tree_nodes, self.vocabulary = max_tree_nodes, vocabulary
        self._free = list(range(model.rows))

    @property
    def free_rows(self) -> int:
        return len(self._free)

    def check(self, prompt: Sequence[int]) -> None:
        """Raise unless a session could start with this prompt."""
        if not len(prompt):
            raise InvalidRequest("the prompt is empty: at least one token is needed")
        if len(prompt) >= self.sequence_length:
            raise LimitExceeded(
                f"a prompt of {len(prompt)} tokens leaves no room: the sequence length is {self.sequence_length}, prompt and output together"
            )
        outside = [token for token in prompt if not 0 <= token < self.vocabulary]
        if outside:
            raise InvalidRequest(f"token id {outside[0]} is outside the vocabulary of {self.vocabulary}")

    def open(self, prompt: Sequence[int], params: SamplingParams) -> TargetSession:
        """A session on a free row, not yet prefilled."""
        self.check(prompt)
        if not self._free:
            raise Busy(f"all {self.model.rows} rows are in use")
        return TargetSession(self, self._free.pop(), prompt, params)

    def close(self, session: TargetSession) -> None:
        """Give the session's row back."""
        self._free.append(session.row)
