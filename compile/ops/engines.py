"""The speed of a rank's parts: documented rates, and constants from passes that others measured.

Documented (aws-neuron-sdk): nki/deep-dives/nki-dma-bandwidth-guide.rst for DMA, and
nki/guides/architecture for the engines' clocks. FITTED and PUBLISHED are frozen:
benchmarks/known_passes.py has the passes they are from, and a test holds the digest of all
constants.
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
    vector: float  # cycles of VectorE, with 128 lanes
    scalar: float  # cycles of ScalarE, with 128 lanes
    tensor: float  # cycles of TensorE, with an array of 128 by 128


@dataclass(frozen=True)
class Fitted:
    """Constants that no document states, in seconds."""

    all_reduce: float  # seconds that the ranks wait for each other in one collective
    host: float  # seconds of a call outside the graph: launch, inputs, results
    node: float = 0.0  # seconds of a node of a row, beside those of its operations


_CORE_V2 = EngineRates(dma=272e9, stream=256e9, vector=1.12e9, scalar=1.4e9, tensor=2.8e9)
_RATES: Mapping[str, EngineRates] = {
    "trn1": _CORE_V2,
    "inf2": replace(_CORE_V2, stream=237e9),
    # a logical core is two cores of the third generation, of whose VectorE each has 256 lanes for
    # float32; nobody published what is reached, so it has trn1's shares of the documented rate
    "trn2": EngineRates(
        dma=736e9,
        stream=693e9,
        vector=4 * 0.96e9,
        scalar=2 * 1.2e9,
        tensor=2 * 2.4e9,
    ),
}
_ESTIMATED: Mapping[str, EngineRates] = {
    # documented are 4.9 TB/s of DMA for a chip of four logical cores and trn2's products a second;
    # the rest is trn2's: nobody published a pass of it
    "trn3": replace(_RATES["trn2"], dma=1225e9, stream=1153e9),
}
"""Rates that no published pass stands behind. Times made of them are estimates."""
FITTED = Fitted(all_reduce=20e-6, host=4e-3)
PUBLISHED: Mapping[str, Fitted] = {"trn2": Fitted(all_reduce=200e-6, host=6.6e-3, node=190e-6)}
"""Constants of targets whose published passes FITTED does not explain. Those of trn2 are solved
from three passes of AWS's vLLM-Neuron on four ranks. It does not overlap the host with the device,
so they are of that server as much as of the device.
"""
ERRORS: Mapping[str, float] = {"trn1": 0.15, "inf2": 0.15}
"""Largest error of a computed pass, as a part of what others measured. Passes of trn1 alone were
compared, the cores of which inf2 has.
"""


def rates_of(target: str) -> EngineRates:
    """The rates of one rank of a Neuron target."""
    return {**_RATES, **_ESTIMATED}[target]


def digest() -> str:
    """A digest of every constant here, documented and fitted."""
    told = {name: asdict(rates) for name, rates in _RATES.items()}
    told["fitted"] = asdict(FITTED)
    told |= {f"{name} as published": asdict(fitted) for name, fitted in PUBLISHED.items()}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]
