"""Checks that a device computes the noise as the contract says: a graph of the noise alone is
compared with known answers.

The 32 bits must be equal. The float results may differ in the last digits. A device that fails must
not serve sampled graphs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from inference.backends.neuron_sdk import Sdk
from inference.errors import BadArtifact
from inference.model.sampler import add_in_halves, noise, threefry2x32

TOLERANCE = 2e-5
"""Largest allowed difference of the noise, which lies in -2.81 to 16.64."""

_WORD = 2**32


class Vector(NamedTuple):
    """A known answer of the noise function."""

    seed: int
    position: int
    token: int
    bits: int
    noise: float


VECTORS = (
    Vector(0, 0, 0, 0x9D1C5EC6, 0.716977),
    Vector(0, 1, 0, 0x4050E5B0, -0.323075),
    Vector(1, 0, 0, 0x61EC2D44, 0.039780),
    Vector(0, 0, 1, 0xFDDDAD3B, 4.782960),
    Vector(42, 7, 151935, 0xDE73237F, 1.962717),
    Vector(2**32, 7, 3, 0xB4782333, 1.050917),
    Vector(0xDEADBEEF, 2048, 31999, 0x5D4D9A6E, -0.009280),
    Vector(123456789012345678, 511, 2, 0x6E7BC05C, 0.173982),
    Vector(2**63 - 1, 131071, 128255, 0xA37B1D36, 0.801888),
)


class NoiseProbe(nn.Module):
    """A graph of the bits or the noise, for one row. Its weight `one` is 1: a package without any
    weight is not a documented case.
    """

    def __init__(self, *, bits: bool) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones(1), requires_grad=False)
        self.bits = bits

    def forward(self, seed: Tensor, position: Tensor, token: Tensor) -> Tensor:
        """Draw: seed [n, 2], position [n], token [n] int32 -> [n], int32 bits or float32 noise."""
        if not self.bits:
            return noise(seed, position, token, add_in_halves) * self.one
        words, _ = threefry2x32((seed[:, 0], seed[:, 1]), (token, position), add_in_halves)
        return words * self.one.to(torch.int32)


def probe_inputs() -> dict[str, Tensor]:
    """The vectors' seeds, positions and tokens."""
    seeds = torch.tensor([[vector.seed % _WORD, vector.seed >> 32] for vector in VECTORS]).to(
        torch.int32
    )
    positions = torch.tensor([vector.position for vector in VECTORS], dtype=torch.int32)
    return {
        "seed": seeds,
        "position": positions,
        "token": torch.tensor([vector.token for vector in VECTORS], dtype=torch.int32),
    }


def check_noise(sdk: Sdk, ranks: int, logical: int, flags: str, work: str) -> None:
    """Compile the probe and run it on the device. Raises BadArtifact, naming the first vector that
    differs.
    """
    bits, drawn = (
        _run(sdk, NoiseProbe(bits=bits), ranks, logical, flags, f"{work}/{bits}")
        for bits in (True, False)
    )
    wrong = next(differences(bits, drawn), None)
    if wrong is not None:
        raise BadArtifact(
            f"this device does not compute the noise as the contract says: {wrong}. Serve greedy "
            "graphs only (--sampling greedy), and report it"
        )


def differences(bits: Tensor, drawn: Tensor) -> Iterator[str]:
    """The differences from the vectors, in words."""
    for vector, word, value in zip(VECTORS, bits.tolist(), drawn.tolist(), strict=True):
        where = f"seed {vector.seed}, position {vector.position}, token {vector.token}"
        if word % _WORD != vector.bits:
            yield f"{where} gave bits {word % _WORD:#010x}, {vector.bits:#010x} is right"
        elif abs(value - vector.noise) > TOLERANCE:
            yield f"{where} gave noise {value}, {vector.noise} is right"


@torch.no_grad()
def _run(sdk: Sdk, probe: NoiseProbe, ranks: int, logical: int, flags: str, work: str) -> Tensor:
    """Build and run one probe through ModelBuilder, as a target is."""
    inputs = probe_inputs()
    with sdk.parallel_state(world_size=ranks, tensor_model_parallel_size=ranks, lnc_size=logical):
        model: Any = (
            sdk.model_builder(probe)
            .trace(kwargs=inputs, tag="noise")
            .compile(compiler_workdir=work, compiler_args={"noise": flags})
        )
    model.set_weights([{"one": torch.ones(1)} for _ in range(ranks)])
    model.to_neuron()
    answer: Tensor = model(**inputs, model_name="noise")
    return answer
