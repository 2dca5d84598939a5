"""What a user asks of sampling, and the constants of the sampling contract.

The contract (docs/architecture.md, "Sampling"): at temperature T > 0 the token at absolute position
i is the v with the greatest logit_v / T + G(seed, i, v), ties to the lowest id; at T = 0 it is the
argmax of the logits. `inference/model/sampler.py` computes it; this module needs no array library, so that
a client without one can ask for it.
"""

from __future__ import annotations

import secrets
import struct
from dataclasses import dataclass, replace

from inference.errors import InvalidRequest

CANDIDATES = 256
"""top-k and top-p act on this many most likely tokens, on every backend."""

SEED_BITS = 63

LEAST_TEMPERATURE, GREATEST_TEMPERATURE = 1e-3, 1e3
"""Beyond these logits / T leaves the range in which float32 can tell tokens apart."""


@dataclass(frozen=True)
class SamplingParams:
    """Temperature (0: greedy), top_k (0: off), top_p (1: off) and the seed of the noise (0 ..
    2**63 - 1).
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

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
        """The same with fractions rounded to float32, as the graph and the wire carry them: both
        sides must use one value.
        """
        rounded = struct.unpack("<2f", struct.pack("<2f", self.temperature, self.top_p))
        return replace(self, temperature=rounded[0], top_p=rounded[1])

    @property
    def greedy(self) -> bool:
        """No noise: the most likely token is chosen."""
        return self.temperature == 0

    @property
    def truncated(self) -> bool:
        """Only the CANDIDATES most likely tokens can be chosen."""
        return self.greedy or self.top_k > 0 or self.top_p < 1


def random_seed() -> int:
    """A seed nobody chose."""
    return secrets.randbits(SEED_BITS)
