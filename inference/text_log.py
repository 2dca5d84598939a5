"""A log of tokens, which are appended and never change. Each reader has a cursor.

The target's session is such a log; its client has a copy (inference/loop/text_copy.py). Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.order import End, Progress, TokenLogProb


class TextLog:
    """The tokens of prompt and output, with proposers and log-probabilities of the output.

    tokens: prompt and output
    proposers: [output tokens] kind of the proposer of each, or NOBODY
    logprobs: [output tokens] if requested
    end: why the output ends
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self.tokens, self.prompt_length = list(prompt), len(prompt)
        self.proposers, self.logprobs = list[int](), list[TokenLogProb]()
        self.end = End.NOT

    @property
    def length(self) -> int:
        """Number of tokens, prompt included."""
        return len(self.tokens)

    @property
    def made(self) -> int:
        """Number of output tokens."""
        return len(self.tokens) - self.prompt_length

    def extend(
        self, tokens: Sequence[int], proposers: Sequence[int], logprobs: Sequence[TokenLogProb] = ()
    ) -> None:
        """Append tokens.

        proposers: [tokens] kind of the proposer of each, or NOBODY
        logprobs: [tokens] if requested
        """
        self.tokens += tokens
        self.proposers += proposers
        self.logprobs += logprobs
        assert len(self.proposers) == self.made, "each token has a proposer"
        assert len(self.logprobs) in (0, self.made), "all tokens have log-probabilities, or none"

    def since(self, cursor: int) -> Progress:
        """Return progress after the first `cursor` tokens. Costs and the target's state are 0."""
        output = slice(max(cursor - self.prompt_length, 0), None)
        return Progress(
            position=cursor,
            tokens=tuple(self.tokens[cursor:]),
            proposers=tuple(self.proposers[output]),
            logprobs=tuple(self.logprobs[output]),
            end=self.end,
        )
