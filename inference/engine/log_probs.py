"""Log-probabilities of one text's tokens, as its client asked for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from inference.backends import LogProbs, Scoring, Segment
from inference.order import LEAST_LOGPROB, TokenLogProb
from inference.sampling import SamplingParams


class TextLogProbs:
    """Reports of a text's tokens. They are empty where nothing was asked for.

    prompt: of the prompt's tokens but the first. `made` tokens are no part of the prompt.
    output: of the tokens behind the prompt that was opened.
    """

    def __init__(self, params: SamplingParams, prompt_length: int) -> None:
        self._params, self._likeliest = params, params.logprobs
        self._wanted = prompt_length - params.made - 1 if params.prompt_logprobs else 0
        self.prompt: list[TokenLogProb] = []
        self.output: list[TokenLogProb] = []

    @property
    def awaits_prompt(self) -> bool:
        """Whether tokens of the prompt are still to be scored: then their keys are computed."""
        return len(self.prompt) < self._wanted

    def of_tree(self, segment: Segment) -> Segment:
        """Return the segment that also scores what it chooses."""
        if self._likeliest is None:
            return segment
        return segment._replace(scoring=Scoring(self._likeliest))

    def of_chunk(self, segment: Segment, following: Sequence[int]) -> Segment:
        """Return the segment of a prompt's chunk that also scores the token behind each node."""
        if self._likeliest is None or not self.awaits_prompt:
            return segment
        hot = self._params.temperature > 0  # what it chooses is ignored: the least work will do
        params = replace(SamplingParams(), temperature=self._params.temperature, top_k=int(hot))
        of = np.array(following, dtype=np.int32)
        pick = np.arange(len(of), dtype=np.int32)
        return segment._replace(pick=pick, params=params, scoring=Scoring(self._likeliest, of))

    def take_tree(self, found: LogProbs | None, nodes: Sequence[int]) -> None:
        """Keep those of the tokens chosen at the nodes of a walk, from the root down."""
        if found is not None:
            self.output += _read(found, nodes)

    def take_chunk(self, found: LogProbs | None, first: int) -> None:
        """Keep those of a prompt's chunk. first: position of its first node."""
        if found is not None:
            known, last = len(self.prompt), min(first + len(found.values), self._wanted)
            self.prompt += _read(found, range(known - first, last - first))


def _read(found: LogProbs, nodes: Sequence[int]) -> list[TokenLogProb]:
    at = list(nodes)
    values, likeliest = (
        np.maximum(part[at], LEAST_LOGPROB).tolist() for part in (found.values, found.likeliest)
    )
    rows = zip(values, found.ids[at].tolist(), likeliest, strict=True)
    return [TokenLogProb(value, tuple(ids), tuple(likely)) for value, ids, likely in rows]
