"""A text as a log: tokens are appended and never change, and each reader has a cursor in it.

The target's session is such a log, and a client has a copy (inference/loop/text_copy.py). Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.order import End, Progress, TokenLogProb


class TextLog:
    """The tokens of a text, with proposers and log-probabilities of those beyond its prompt.

    tokens: all of them, prompt included
    proposers: [tokens beyond the prompt] kind of the proposer of each, or NOBODY
    logprobs: [tokens beyond the prompt] if requested
    end: why the text ends
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self.tokens, self.prompt_length = list(prompt), len(prompt)
        self.proposers, self.logprobs = list[int](), list[TokenLogProb]()
        self.end = End.NOT

    @property
    def length(self) -> int:
        """Tokens of the text, prompt included."""
        return len(self.tokens)

    @property
    def made(self) -> int:
        """Tokens beyond the prompt."""
        return len(self.tokens) - self.prompt_length

    def extend(
        self, tokens: Sequence[int], proposers: Sequence[int], logprobs: Sequence[TokenLogProb] = ()
    ) -> None:
        """Append tokens.

        proposers: [tokens] as in the log
        logprobs: [tokens] if requested
        """
        self.tokens += tokens
        self.proposers += proposers
        self.logprobs += logprobs
        assert len(self.proposers) == self.made, "each token has a proposer"
        assert len(self.logprobs) in (0, self.made), "all tokens have log-probabilities, or none"

    def since(self, cursor: int) -> Progress:
        """Progress beyond the first `cursor` tokens. Costs and the state of the target are 0."""
        made = slice(max(cursor - self.prompt_length, 0), None)
        return Progress(
            position=cursor,
            tokens=tuple(self.tokens[cursor:]),
            proposers=tuple(self.proposers[made]),
            logprobs=tuple(self.logprobs[made]),
            end=self.end,
        )
