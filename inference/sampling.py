"""The sampling parameters of a request, and the constants of the sampling contract.

The contract (docs/architecture.md, "Sampling"): at temperature T > 0 the token at absolute position
i is the v with the greatest logit_v / T + G(seed, i, v), ties to the lowest id; at T = 0 it is the
argmax of the logits. G is Gumbel noise. `inference/model/choice/sampler.py` computes the choice.
This module needs no array library, so a client without one can import it.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from hashlib import sha256
from typing import Any, TypeAlias

from inference.errors import InvalidRequest

CANDIDATES = 256
"""Number of most likely tokens to which top-k and top-p apply, on every backend."""

SEED_BITS = 63

MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-3, 1e3
"""Bounds of T > 0. Beyond them, logits / T is too large or too small for float32 to compare."""

MIN_TOP_P = 1e-6
"""Value used for a requested top_p of 0: only the most likely token remains."""

MIN_REPETITION, MAX_REPETITION = 0.01, 100.0
MAX_PENALTY = 2.0
MAX_BIAS, MAX_BIASES = 100.0, 300
MAX_LOGPROBS = 20
MAX_END_IDS = 1024
ID_BOUND = 2**32
"""Bounds of the parameters that change logits and report log-probabilities, as in OpenAI's API.
Token ids are sent as 32 bits.
"""

MAX_GRAMMAR = 64 * 1024
"""Maximum bytes of a grammar's text."""


class GrammarKind(Enum):
    """The language in which a grammar is written."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    EBNF = "ebnf"  # the syntax of Lark, as llguidance reads it
    CHOICE = "choice"  # a JSON list of strings, one of which is the text


@dataclass(frozen=True)
class Grammar:
    """A grammar that the output must match. Raises InvalidRequest if it is empty or too long.

    `Grammars` (inference/text/grammar.py) checks whether it can be compiled.
    """

    kind: GrammarKind
    text: str

    def __post_init__(self) -> None:
        try:
            size = len(self.text.encode())
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"the grammar is not valid Unicode: an unpaired surrogate at {error.start}"
            ) from error
        if not 0 < size <= MAX_GRAMMAR:
            raise InvalidRequest(f"a grammar has 1 to {MAX_GRAMMAR} bytes: got {size}")

    @cached_property
    def digest(self) -> str:
        """SHA-256 of kind and text, by which check results are cached."""
        return sha256(f"{self.kind.value}\n{self.text}".encode()).hexdigest()


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters of a request. Raises InvalidRequest for a value out of bounds."""

    temperature: float = 0.0  # 0: greedy
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    seed: int = 0  # seed of the noise: 0 to 2**63 - 1
    min_p: float = 0.0  # 0: off; minimum probability, as a share of the most likely token's
    repetition_penalty: float = 1.0  # 1: off; applies to tokens in prompt and output
    presence_penalty: float = 0.0  # subtracted once from the logits of the output's tokens
    frequency_penalty: float = 0.0  # subtracted for each time that a token is in the output
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, number to add to its logit)
    grammar: Grammar | None = None  # the output must match it
    logprobs: int | None = None  # most likely tokens to report in addition to the chosen token
    prompt_logprobs: bool = False  # report log-probabilities of the prompt's tokens, too
    min_tokens: int = 0  # minimum tokens of the output before any of end_ids can be chosen
    end_ids: tuple[int, ...] = ()
    made: int = 0  # last tokens of the prompt that are output of an earlier, continued session

    def __post_init__(self) -> None:
        within = MIN_TEMPERATURE <= self.temperature <= MAX_TEMPERATURE
        if self.temperature != 0 and not within:
            allowed = f"0 (greedy) or {MIN_TEMPERATURE} to {MAX_TEMPERATURE}"
            raise InvalidRequest(f"temperature must be {allowed}: got {self.temperature}")
        if not 0 <= self.top_k <= CANDIDATES:
            raise InvalidRequest(f"top_k must be 0 (off) to {CANDIDATES}: got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise InvalidRequest(f"top_p must be above 0 and at most 1 (off): got {self.top_p}")
        if not 0 <= self.seed < 2**SEED_BITS:
            raise InvalidRequest(f"seed must be 0 to 2**{SEED_BITS} - 1: got {self.seed}")
        if not 0 <= self.min_p <= 1:
            raise InvalidRequest(f"min_p must be 0 (off) to 1: got {self.min_p}")
        self._check_changes()
        self._check_length()
        self._check_reports()

    def _check_changes(self) -> None:
        if not _rounded(MIN_REPETITION) <= self.repetition_penalty <= MAX_REPETITION:
            allowed = f"{MIN_REPETITION} to {MAX_REPETITION} (1: off)"
            raise InvalidRequest(
                f"repetition_penalty must be {allowed}: got {self.repetition_penalty}"
            )
        for name in ("presence_penalty", "frequency_penalty"):
            if not -MAX_PENALTY <= (value := getattr(self, name)) <= MAX_PENALTY:
                allowed = f"-{MAX_PENALTY} to {MAX_PENALTY}"
                raise InvalidRequest(f"{name} must be {allowed}: got {value}")
        if len(self.logit_bias) > MAX_BIASES:
            raise InvalidRequest(
                f"logit_bias takes up to {MAX_BIASES} tokens: got {len(self.logit_bias)}"
            )
        if len({token for token, _ in self.logit_bias}) < len(self.logit_bias):
            raise InvalidRequest("logit_bias has a token twice: each may have one bias")
        for token, bias in self.logit_bias:
            if not 0 <= token < ID_BOUND:
                raise InvalidRequest(f"logit_bias: token ids are 0 to {ID_BOUND - 1}: got {token}")
            if not -MAX_BIAS <= bias <= MAX_BIAS:
                raise InvalidRequest(
                    f"logit_bias takes biases of -{MAX_BIAS} to {MAX_BIAS}: got {token}: {bias}"
                )

    def _check_length(self) -> None:
        if not 0 <= self.min_tokens < ID_BOUND or len(self.end_ids) > MAX_END_IDS:
            raise InvalidRequest(
                f"min_tokens must be 0 or more, with up to {MAX_END_IDS} ids that end a text: got "
                f"{self.min_tokens} and {len(self.end_ids)}"
            )
        if wrong := [token for token in self.end_ids if not 0 <= token < ID_BOUND]:
            raise InvalidRequest(f"token ids are 0 to {ID_BOUND - 1}: got {wrong[0]}")
        if self.min_tokens and self.grammar is not None:
            raise InvalidRequest(
                "min_tokens cannot be combined with a grammar, which says where a text ends"
            )

    def _check_reports(self) -> None:
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_LOGPROBS:
            raise InvalidRequest(f"logprobs must be 0 to {MAX_LOGPROBS}: got {self.logprobs}")
        if self.prompt_logprobs and self.logprobs is None:
            raise InvalidRequest("prompt_logprobs needs logprobs: the number of most likely tokens")
        if self.made < 0:
            raise InvalidRequest(f"made must be 0 or more tokens: got {self.made}")

    def on_the_wire(self) -> SamplingParams:
        """Return the parameters with fractions rounded to float32.

        Graphs and messages carry float32, and client and target must use the same values.
        """
        rounded: dict[str, Any] = {name: _rounded(getattr(self, name)) for name in _FRACTIONS}
        biases = tuple((token, _rounded(bias)) for token, bias in self.logit_bias)
        return replace(self, logit_bias=biases, **rounded)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is chosen, without noise."""
        return self.temperature == 0

    @property
    def truncated(self) -> bool:
        """Whether only the CANDIDATES most likely tokens can be chosen."""
        return self.greedy or self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @property
    def adjusts(self) -> bool:
        """Whether logits are changed before the choice: by penalties, biases, a grammar or a
        minimum length.
        """
        penalties = self.repetition_penalty != 1 or self.presence_penalty or self.frequency_penalty
        minimum = self.min_tokens and self.end_ids
        return bool(penalties or self.logit_bias or self.grammar is not None or minimum)

    @property
    def needs_rule(self) -> bool:
        """Whether a target must be able to adjust logits, or to report log-probabilities."""
        return self.adjusts or self.logprobs is not None


_FRACTIONS = (
    "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip


def _rounded(value: float) -> float:
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


def random_seed() -> int:
    """Return a random seed, for a request without one."""
    return secrets.randbits(SEED_BITS)


ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
"""Bits by which Threefry rotates a word in each round; the sequence is repeated."""

ROUNDS = 13
PARITY = 0x1BD11BDA

UInts: TypeAlias = Any
"""32-bit words: an int32 array of numpy, or an int32 tensor of torch."""

Shift: TypeAlias = Callable[[UInts, int], UInts]


def threefry2x32(
    key: tuple[UInts, UInts], counter: tuple[UInts, UInts], left: Shift, right: Shift
) -> tuple[UInts, UInts]:
    """Run 13 rounds of Threefry-2x32 (Salmon et al. 2011) on words that broadcast. Sums wrap.

    left, right: the array library's shifts of words; the right shift is arithmetic
    """
    keys = (key[0], key[1], key[0] ^ key[1] ^ PARITY)
    x, y = counter[0] + keys[0], counter[1] + keys[1]
    for index in range(ROUNDS):
        turn = ROTATIONS[index % 8]
        x = x + y
        y = (left(y, turn) | (right(y, 32 - turn) & ((1 << turn) - 1))) ^ x
        if index % 4 == 3:
            round_ = index // 4 + 1
            x = x + keys[round_ % 3]
            y = y + (keys[(round_ + 1) % 3] + round_)
    return x, y
