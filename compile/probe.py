"""Checks that a device computes the noise as the contract says.

Two graphs, of the words and of the noise, fill a table of the size that a target's graph fills: one
row for each of 16 depths, one column for each of 151,936 tokens. All of it is compared with the
host's. Rows are chosen so that the least and the greatest noise occur: the greatest decides texts.
Words must be equal, noise may differ in the last digits. A device that fails must not serve sampled
graphs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from compile.build.neuron_compiler import Toolchain, render
from compile.spec import CompileSpec
from inference.backends.neuron_sdk import load_build_units
from inference.errors import BadArtifact
from inference.model.noise import from_limbs, left, noise, noise_in_limbs, right, threefry_in_limbs
from inference.sampling import threefry2x32

TOLERANCE = 2e-5
"""Largest allowed difference of the noise, which lies in -2.82 to 16.64."""

TOKENS = 151_936
"""Columns of the table: the ids of a large vocabulary."""

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
    # the greatest noise there is, the next four values, and the four least
    Vector(26, 0, 133856, 0xFFFFFE28, 16.635532),
    Vector(15, 0, 26447, 0xFFFFFCE2, 15.536920),
    Vector(161, 0, 25700, 0xFFFFFB0B, 15.026094),
    Vector(140, 0, 40320, 0xFFFFF9D8, 14.689622),
    Vector(14, 0, 29497, 0xFFFFF70B, 14.438307),
    Vector(81, 0, 12204, 0x000001AD, -2.811541),
    Vector(140, 0, 147348, 0x0000022D, -2.743219),
    Vector(30, 0, 98752, 0x0000041F, -2.709788),
    Vector(25, 0, 37122, 0x00000619, -2.687141),
)

ROWS = tuple(dict.fromkeys((vector.seed, vector.position) for vector in VECTORS))
"""Seed and position of each row of the table."""


class NoiseProbe(nn.Module):
    """A graph of the words or of the noise of a whole table.

    Its weight is 0 and changes nothing: a package without any weight is not a documented case.
    """

    def __init__(self, *, words: bool) -> None:
        super().__init__()
        self.zero = nn.Parameter(torch.zeros(1), requires_grad=False)
        self.words = words

    def forward(self, seed: Tensor, position: Tensor) -> Tensor:
        """Fill the table: seed [R, 2], position [R, 1] int32 -> [R, TOKENS] int32 or float32."""
        ids = torch.arange(TOKENS, dtype=torch.int32, device=seed.device)
        keys = seed[:, None]  # [R, 1, 2]
        if not self.words:
            return noise_in_limbs(keys, position, ids) + self.zero
        word, _ = threefry_in_limbs((keys[..., 0], keys[..., 1]), (ids, position))
        return from_limbs(word) ^ self.zero.to(torch.int32)


def probe_inputs() -> dict[str, Tensor]:
    """Seeds and positions of the table's rows."""
    seeds = torch.tensor([[seed % _WORD, seed >> 32] for seed, _ in ROWS]).to(torch.int32)
    positions = torch.tensor([[position] for _, position in ROWS], dtype=torch.int32)
    return {"seed": seeds, "position": positions}


def expected() -> tuple[Tensor, Tensor]:
    """The host's words and noise of the whole table."""
    ids = torch.arange(TOKENS, dtype=torch.int32)
    inputs = probe_inputs()
    keys, position = inputs["seed"][:, None], inputs["position"]
    words, _ = threefry2x32((keys[..., 0], keys[..., 1]), (ids, position), left, right)
    return words, noise(keys, position, ids)


def check_noise(spec: CompileSpec, work: Path) -> None:
    """Compile the probe as the spec's graphs are, and run it on the device. Raises BadArtifact,
    naming a value that differs.

    work: the compiler's directory
    """
    tools = Toolchain(spec)
    words, drawn = (
        _run(tools, NoiseProbe(words=each), spec.tensor_parallel, work / str(each))
        for each in (True, False)
    )
    wrong = difference(words, drawn)
    if wrong is not None:
        raise BadArtifact(
            f"this device does not compute the noise as the contract says: {wrong}. Serve greedy "
            "graphs only (--sampling greedy), and report it"
        )


def difference(words: Tensor, drawn: Tensor) -> str | None:
    """The first wrong word, else the most wrong noise, in words; None where the device is right."""
    right, exact = expected()
    differing = (words != right).nonzero()
    if len(differing):
        row, token = differing[0].tolist()
        got, wanted = (int(each[row, token]) % _WORD for each in (words, right))
        return f"{_place(row, token)} gave bits {got:#010x}, {wanted:#010x} is right"
    error = torch.where(drawn.isfinite(), (drawn - exact).abs(), torch.inf)
    if error.max() <= TOLERANCE:
        return None
    row, token = divmod(int(error.argmax()), TOKENS)
    return f"{_place(row, token)} gave noise {drawn[row, token]}, {exact[row, token]} is right"


def _place(row: int, token: int) -> str:
    seed, position = ROWS[row]
    return f"seed {seed}, position {position}, token {token}"


@torch.no_grad()
def _run(tools: Toolchain, probe: NoiseProbe, ranks: int, work: Path) -> Tensor:
    """Trace, compile and run one probe."""
    inputs, sdk = probe_inputs(), tools.sdk
    units = load_build_units()
    with sdk.parallel_state(
        world_size=ranks, tensor_model_parallel_size=ranks, lnc_size=tools.logical
    ):
        trace = units.trace(model=probe, kwargs=inputs)
        made = units.compile(
            hlo_module=trace.hlo,
            metaneff=trace.metaneff,
            compiler_workdir=str(work),
            compiler_args=render(tools.flags),
            key="noise",
        )
        model: Any = sdk.nxd_model(world_size=ranks)
        model.add(key="noise", trace_artifacts=trace, compilation_artifacts=made)
    model.set_weights([{"zero": torch.zeros(1)} for _ in range(ranks)])
    model.to_neuron()
    answer: Tensor = model(**inputs, model_name="noise")
    return answer
