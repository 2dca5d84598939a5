"""A text's rule by other hands: transformers' logits processors, and a matcher that reads the whole
output again at every position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import llguidance
import numpy as np
import torch
from torch import Tensor
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from inference.sampling import CANDIDATES, Grammar, GrammarKind, SamplingParams
from tests.support.noise_oracle import exact_gumbel
from tests.support.noise_oracle import oracle as threefry

EXCLUDED = float("-inf")


class RuleOracle:
    """The rule of one text. Its output begins behind `begin` tokens."""

    def __init__(
        self, tokenizer: llguidance.LLTokenizer | None, begin: int, params: SamplingParams
    ) -> None:
        self._tokenizer, self._begin, self._params = tokenizer, begin, params

    def adjusted(self, text: Sequence[int], logits: Tensor) -> Tensor:  # [V]
        params, scores = self._params, logits[None].clone()
        if params.repetition_penalty != 1:
            penalty = RepetitionPenaltyLogitsProcessor(params.repetition_penalty)
            scores = penalty(torch.tensor([text]), scores)
        counts = torch.bincount(
            torch.tensor(text[self._begin :], dtype=torch.int64), minlength=len(logits)
        )
        scores = scores - params.presence_penalty * (counts > 0) - params.frequency_penalty * counts
        if params.logit_bias:
            biases: Any = {(token,): float(bias) for token, bias in params.logit_bias}
            scores = SequenceBiasLogitsProcessor(biases)(torch.tensor([text]), scores)
        if params.grammar is not None:
            allowed = torch.from_numpy(self.allowed(params.grammar, text[self._begin :]))
            scores = scores.masked_fill(~allowed[: len(logits)], EXCLUDED)
        return scores[0]

    def allowed(self, grammar: Grammar, output: Sequence[int]) -> np.ndarray:  # [V] bool
        """Return the ids that may follow an output. Behind a stop id others may not."""
        assert self._tokenizer is not None, "a grammar needs a tokenizer"
        matcher = llguidance.LLMatcher(self._tokenizer, written(grammar), log_level=0)
        stops = self._tokenizer.eos_tokens
        kept = next((at for at, token in enumerate(output) if token in stops), len(output))
        assert matcher.consume_tokens(list(output[:kept])), matcher.get_error()
        if kept < len(output):
            assert matcher.is_accepting()
            return np.isin(np.arange(self._tokenizer.vocab_size), stops)
        octets = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        return np.unpackbits(octets, bitorder="little").astype(np.bool_)

    def choice(self, text: Sequence[int], logits: Tensor) -> int:
        """Return the token behind a text, in float64."""
        params, scores = self._params, self.adjusted(text, logits.double())
        if params.greedy:
            return int(scores.argmax())
        scores = scores / params.temperature
        if params.min_p:
            texts = torch.LongTensor([text])
            scores = MinPLogitsWarper(params.min_p)(texts, scores[None])[0]
        if params.truncated:
            scores[scores.argsort(descending=True, stable=True)[CANDIDATES:]] = EXCLUDED
        noise = [gumbel(params.seed, len(text), token) for token in range(len(scores))]
        return int((scores + torch.tensor(noise, dtype=torch.float64)).argmax())


def written(grammar: Grammar) -> str:
    """Return a grammar as llguidance reads it."""
    if grammar.kind is GrammarKind.REGEX:
        return llguidance.LLMatcher.grammar_from_regex(grammar.text)
    assert grammar.kind is GrammarKind.JSON_SCHEMA, "no other kind is asked for"
    line: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    return llguidance.LLMatcher.grammar_from_json_schema(grammar.text, overrides=line)


def gumbel(seed: int, position: int, token: int) -> float:
    return exact_gumbel(threefry((seed % 2**32, seed >> 32), (token, position))[0])
