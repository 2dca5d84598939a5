"""Log-probabilities of a session's tokens, as its client requested them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from inference.backends import LogProbs, Scoring, Segment
from inference.order import MIN_LOGPROB, TokenLogProb
from inference.sampling import SamplingParams


class PromptScores:
    """Log-probabilities of a prompt's tokens, collected while the prompt is prefilled.

    logprobs: those of the prompt's tokens except the first; empty if not requested. Tokens
    generated in an earlier session do not count as prompt.
    """

    def __init__(self, params: SamplingParams, prompt_length: int) -> None:
        self._params, self.logprobs = params, list[TokenLogProb]()
        self._wanted = prompt_length - params.made - 1 if params.prompt_logprobs else 0

    @property
    def missing(self) -> bool:
        """Whether prompt tokens are still unscored; their keys then must not come from a cache."""
        return len(self.logprobs) < self._wanted

    def of_chunk(self, segment: Segment, following: Sequence[int]) -> Segment:
        """Return the segment of a prompt's chunk, extended to score the token after each node."""
        likeliest = self._params.logprobs
        if likeliest is None or not self.missing:
            return segment
        hot = self._params.temperature > 0  # the choice is ignored, so use the cheapest
        params = replace(SamplingParams(), temperature=self._params.temperature, top_k=int(hot))
        of = np.array(following, dtype=np.int32)
        pick = np.arange(len(of), dtype=np.int32)
        return segment._replace(pick=pick, params=params, scoring=Scoring(likeliest, of))

    def take(self, scores: LogProbs | None, first: int) -> None:
        """Store the scores of a prompt's chunk. first: position of its first node."""
        if scores is not None:
            count, last = len(self.logprobs), min(first + len(scores.values), self._wanted)
            self.logprobs += read_scores(scores, range(count - first, last - first))


def read_scores(scores: LogProbs | None, nodes: Sequence[int]) -> list[TokenLogProb]:
    """Return the log-probabilities of the tokens chosen at these nodes; empty if not requested."""
    if scores is None:
        return []
    at = list(nodes)
    values, likeliest = (
        np.maximum(logs[at], MIN_LOGPROB).tolist() for logs in (scores.values, scores.likeliest)
    )
    rows = zip(values, scores.ids[at].tolist(), likeliest, strict=True)
    return [TokenLogProb(value, tuple(ids), tuple(likely)) for value, ids, likely in rows]
