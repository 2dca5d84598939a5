"""Noise, rules and choices of the sampling contract by other hands, with known answers."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, getcontext
from typing import Any

import llguidance
import numpy as np
import torch
from torch import Tensor

from inference.sampling import CANDIDATES, Grammar, GrammarKind, SamplingParams

WORD = 2**32

PUBLISHED = [  # Random123, tests/kat_vectors: threefry2x32 13 (counter, key, answer)
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x9D1C5EC6, 0x8BD50731)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0xFD36D048, 0x2D17272C)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xBA3E4725, 0xF27D669E)),
]

PINNED = [  # seed, position, token id -> the 32 bits, the noise
    (0, 0, 0, 0x9D1C5EC6, 0.716977),
    (0, 1, 0, 0x4050E5B0, -0.323075),
    (1, 0, 0, 0x61EC2D44, 0.039780),
    (0, 0, 1, 0xFDDDAD3B, 4.782960),
    (42, 7, 151935, 0xDE73237F, 1.962717),
    (2**32, 7, 3, 0xB4782333, 1.050917),
    (0xDEADBEEF, 2048, 31999, 0x5D4D9A6E, -0.009280),
    (123456789012345678, 511, 2, 0x6E7BC05C, 0.173982),
    (2**63 - 1, 131071, 128255, 0xA37B1D36, 0.801888),
    # the greatest noise there is, the next four values, and the four least
    (26, 0, 133856, 0xFFFFFE28, 16.635532),
    (15, 0, 26447, 0xFFFFFCE2, 15.536920),
    (161, 0, 25700, 0xFFFFFB0B, 15.026094),
    (140, 0, 40320, 0xFFFFF9D8, 14.689622),
    (14, 0, 29497, 0xFFFFF70B, 14.438307),
    (81, 0, 12204, 0x000001AD, -2.811541),
    (140, 0, 147348, 0x0000022D, -2.743219),
    (30, 0, 98752, 0x0000041F, -2.709788),
    (25, 0, 37122, 0x00000619, -2.687141),
]


def int32(*words: int) -> Tensor:
    return torch.tensor(
        [word - WORD if word >= WORD // 2 else word for word in words], dtype=torch.int32
    )


def seed_words(seed: int) -> Tensor:
    return int32(seed % WORD, seed >> 32)


def threefry(key: tuple[int, int], counter: tuple[int, int]) -> tuple[int, int]:
    parts = (key[0], key[1], 0x1BD11BDA ^ key[0] ^ key[1])
    x, y = (counter[0] + parts[0]) % WORD, (counter[1] + parts[1]) % WORD
    for count, turn in enumerate([13, 15, 26, 6, 17, 29, 16, 24, 13, 15, 26, 6, 17], start=1):
        x = (x + y) % WORD
        y = (y * 2**turn % WORD + y // 2 ** (32 - turn)) ^ x
        if count % 4 == 0:
            nth = count // 4
            x, y = (x + parts[nth % 3]) % WORD, (y + parts[(nth + 1) % 3] + nth) % WORD
    return x, y


def exact_gumbel(bits: int) -> float:
    """-ln(-ln(u)) of the contract's u, in 40 digits."""
    getcontext().prec = 40
    uniform = (Decimal(bits >> 9) + Decimal("0.5")) / 2**23
    return float(-(-uniform.ln()).ln())


EXCLUDED = float("-inf")


class RuleOracle:
    """The rule of one text. Its output begins behind `begin` tokens."""

    def __init__(
        self, tokenizer: llguidance.LLTokenizer | None, begin: int, params: SamplingParams
    ) -> None:
        self._tokenizer, self._begin, self._params = tokenizer, begin, params

    def adjusted(self, text: Sequence[int], logits: Tensor) -> Tensor:  # [V]
        from transformers import RepetitionPenaltyLogitsProcessor, SequenceBiasLogitsProcessor

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
        from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

        params, scores = self._params, self.adjusted(text, logits.double())
        if params.greedy:
            return int(scores.argmax())
        scores, texts = scores[None] / params.temperature, torch.LongTensor([text])
        if params.min_p:
            scores = MinPLogitsWarper(params.min_p)(texts, scores)
        if params.top_k:
            scores = TopKLogitsWarper(params.top_k)(texts, scores)
        if params.top_p < 1:
            scores = TopPLogitsWarper(params.top_p)(texts, scores)
        (scores,) = scores
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
