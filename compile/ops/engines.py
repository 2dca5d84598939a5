"""How fast a rank's parts are: documented rates, and three constants that were fitted to passes
that others measured.

Documented (aws-neuron-sdk): nki/deep-dives/nki-dma-bandwidth-guide.rst for DMA, and
nki/guides/architecture for the engines' clocks. FITTED is frozen: docs/neuron.md says what it was
fitted to, and a test holds its digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True)
class Rates:
    """What one rank does in a second."""

    dma: float  # bytes between memory and the core, as documented
    vector: float  # cycles of VectorE, with 128 lanes
    scalar: float  # cycles of ScalarE, with 128 lanes
    tensor: float  # cycles of TensorE, with an array of 128 by 128


@dataclass(frozen=True)
class Fitted:
    """What no document states."""

    all_reduce: float  # seconds that the ranks wait for each other in one collective
    host: float  # seconds of a call outside the graph: launch, inputs, results


_CORE_V2 = Rates(dma=272e9, vector=1.12e9, scalar=1.4e9, tensor=2.8e9)
_RATES: Mapping[str, Rates] = {
    "trn1": _CORE_V2,
    "inf2": replace(_CORE_V2, dma=237e9),  # measured by others; 272 is documented for both
    # a logical core is two cores of the third generation; VectorE has 256 lanes for float32
    "trn2": Rates(dma=736e9, vector=4 * 0.96e9, scalar=2 * 1.2e9, tensor=2 * 2.4e9),
}
FITTED = Fitted(all_reduce=20e-6, host=4e-3)
DMA_REACHED = 0.94
"""Share of a documented DMA rate that a stream of weights reaches: 256 of 272 GB/s, by AWS's
profiler on a trn1.2xlarge, as published in others' measurements.
"""
OBSERVED_DMA = 180e9
"""Bytes a second and core over a whole pass of AWS's own fastest published 70B target on trn1."""


def rates_of(target: str) -> Rates:
    """The rates of one rank of a Neuron target."""
    return _RATES[target]


def digest() -> str:
    """A digest of every constant here, documented and fitted."""
    told = {name: asdict(rates) for name, rates in _RATES.items()}
    told |= {"fitted": asdict(FITTED), "dma": {"reached": DMA_REACHED, "observed": OBSERVED_DMA}}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]
