"""A user's sampling parameters, and the constants of the sampling contract.

The contract (docs/architecture.md, "Sampling"): at temperature T > 0 the token at absolute position
i is the v with the greatest logit_v / T + G(seed, i, v), ties to the lowest id; at T = 0 it is the
argmax of the logits. G is Gumbel noise. `inference/model/sampler.py` computes the choice. This
module needs no array library, so a client without one can import it.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from inference.errors import InvalidRequest

CANDIDATES = 256
"""Number of most likely tokens that top-k and top-p act on, on every backend."""

SEED_BITS = 63

LEAST_TEMPERATURE, GREATEST_TEMPERATURE = 1e-3, 1e3
"""Bounds of T > 0. Beyond them, logits / T is too large or too small for float32 to compare."""


@dataclass(frozen=True)
class SamplingParams:
    """Parameters by which tokens are sampled. Raises InvalidRequest for a value out of bounds."""

    temperature: float = 0.0  # 0: greedy
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    seed: int = 0  # seed of the noise: 0 to 2**63 - 1

    def __post_init__(self) -> None:
        if (
            self.temperature != 0
            and not LEAST_TEMPERATURE <= self.temperature <= GREATEST_TEMPERATURE
        ):
            allowed = f"0 (greedy) or {LEAST_TEMPERATURE} to {GREATEST_TEMPERATURE}"
            raise InvalidRequest(f"temperature must be {allowed}: got {self.temperature}")
        if not 0 <= self.top_k <= CANDIDATES:
            raise InvalidRequest(f"top_k must be 0 (off) to {CANDIDATES}: got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise InvalidRequest(f"top_p must be above 0 and at most 1 (off): got {self.top_p}")
        if not 0 <= self.seed < 2**SEED_BITS:
            raise InvalidRequest(f"seed must be 0 to 2**{SEED_BITS} - 1: got {self.seed}")

    def on_the_wire(self) -> SamplingParams:
        """The parameters with fractions rounded to float32.

        Graphs and the wire carry float32, and both sides must use the same value.
        """
        rounded = struct.unpack("<2f", struct.pack("<2f", self.temperature, self.top_p))
        return replace(self, temperature=rounded[0], top_p=rounded[1])

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is chosen, without noise."""
        return self.temperature == 0

    @property
    def truncated(self) -> bool:
        """Whether only the CANDIDATES most likely tokens can be chosen."""
        return self.greedy or self.top_k > 0 or self.top_p < 1


def random_seed() -> int:
    """A random seed, for a user who gave none."""
    return secrets.randbits(SEED_BITS)


ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
"""Bits by which Threefry turns a word, in the order of its rounds, over and over."""

ROUNDS = 13
PARITY = 0x1BD11BDA

UInts: TypeAlias = Any
"""32-bit words: an int32 array of numpy, or an int32 tensor of torch."""

Shift: TypeAlias = Callable[[UInts, int], UInts]


def threefry2x32(
    key: tuple[UInts, UInts], counter: tuple[UInts, UInts], left: Shift, right: Shift
) -> tuple[UInts, UInts]:
    """13 rounds of Threefry-2x32 (Salmon et al. 2011) on words that broadcast. Sums wrap.

    left, right: shift words of that library; right is arithmetic
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
