"""The speed of a rank's parts: documented rates, and two constants that were fitted to passes that
others measured.

Documented (aws-neuron-sdk): nki/deep-dives/nki-dma-bandwidth-guide.rst for DMA, and
nki/guides/architecture for the engines' clocks. FITTED is frozen: benchmarks/known_passes.py has
what it was fitted to, and a test holds the digest of all constants.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True)
class EngineRates:
    """Rates of one rank's parts, in bytes or cycles a second."""

    dma: float  # bytes between memory and the core, as documented
    stream: float  # bytes of a stream of weights, as others measured
    observed: float  # bytes over a whole pass of the fastest published 70B target
    vector: float  # cycles of VectorE, with 128 lanes
    scalar: float  # cycles of ScalarE, with 128 lanes
    tensor: float  # cycles of TensorE, with an array of 128 by 128


@dataclass(frozen=True)
class Fitted:
    """Constants that no document states, in seconds."""

    all_reduce: float  # seconds that the ranks wait for each other in one collective
    host: float  # seconds of a call outside the graph: launch, inputs, results


_CORE_V2 = EngineRates(
    dma=272e9, stream=256e9, observed=180e9, vector=1.12e9, scalar=1.4e9, tensor=2.8e9
)
_RATES: Mapping[str, EngineRates] = {
    "trn1": _CORE_V2,
    "inf2": replace(_CORE_V2, stream=237e9),
    # a logical core is two cores of the third generation, of whose VectorE each has 256 lanes for
    # float32; nobody published what is reached, so it has trn1's shares of the documented rate
    "trn2": EngineRates(
        dma=736e9,
        stream=693e9,
        observed=487e9,
        vector=4 * 0.96e9,
        scalar=2 * 1.2e9,
        tensor=2 * 2.4e9,
    ),
}
_ESTIMATED: Mapping[str, EngineRates] = {
    # documented are 4.9 TB/s of DMA for a chip of four logical cores and trn2's products a second;
    # the rest is trn2's: nobody published a pass of it
    "trn3": replace(_RATES["trn2"], dma=1225e9, stream=1153e9, observed=811e9),
}
"""Rates that no published pass stands behind. Times made of them are estimates."""
FITTED = Fitted(all_reduce=20e-6, host=4e-3)


def rates_of(target: str) -> EngineRates:
    """The rates of one rank of a Neuron target."""
    return {**_RATES, **_ESTIMATED}[target]


def digest() -> str:
    """A digest of every constant here, documented and fitted."""
    told = {name: asdict(rates) for name, rates in _RATES.items()}
    told["fitted"] = asdict(FITTED)
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]
