"""The noise of the sampling contract: Threefry-2x32-13 words, and Gumbel noise made of them.

There are two ways to compute it. `noise` is for machines with 32-bit integers and exact logarithms.
`noise_in_limbs` is for machines whose vector units compute in float32, such as NeuronCores. Words
are equal bit for bit, noise to the last digits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inference.sampling import PARITY, ROTATIONS, ROUNDS, threefry2x32

_LOW = 0xFFFF

SMALL = 2.0**-5
"""The value of 1 - u below which noise_in_limbs() sums a series for log(u)."""

_TERMS = 5  # leave out 5e-9 of the sum at SMALL

Limbs = tuple[Tensor, Tensor]
"""A 32-bit word as its high and its low 16 bits, each in an int32 tensor."""


def left(x: Tensor, bits: int) -> Tensor:
    """Shift left."""
    return torch.bitwise_left_shift(
        x, torch.scalar_tensor(bits, dtype=torch.int32, device=x.device)
    )


def right(x: Tensor, bits: int) -> Tensor:
    """Arithmetic shift right: copies of the sign come in from the left.

    Both operands are tensors, because torch_xla turns x >> number into a division that rounds
    towards 0.
    """
    return torch.bitwise_right_shift(
        x, torch.scalar_tensor(bits, dtype=torch.int32, device=x.device)
    )


def threefry_in_limbs(
    key: tuple[Tensor, Tensor], counter: tuple[Tensor, Tensor]
) -> tuple[Limbs, Limbs]:
    """Compute threefry2x32() of inference/sampling.py on 16-bit limbs.

    No intermediate has more than 31 bits, no sum more than 18, and no negative number is shifted.
    So it is exact where a vector unit adds in float32 and shifts in zeros only.
    """
    first, second = to_limbs(key[0]), to_limbs(key[1])
    third = (first[0] ^ second[0] ^ (PARITY >> 16), first[1] ^ second[1] ^ (PARITY & _LOW))
    keys = first, second, third
    x, y = _add(to_limbs(counter[0]), keys[0]), _add(to_limbs(counter[1]), keys[1])
    for index in range(ROUNDS):
        x = _add(x, y)
        turned = _turn(y, ROTATIONS[index % 8])
        y = (turned[0] ^ x[0], turned[1] ^ x[1])
        if index % 4 == 3:
            round_ = index // 4 + 1
            high, low = keys[(round_ + 1) % 3]
            x = _add(x, keys[round_ % 3])
            y = _add(y, (high, low + round_))
    return x, y


def to_limbs(word: Tensor) -> Limbs:
    """Split int32 words. The sign bit is moved by a comparison, not by a shift."""
    sign = left((word < 0).to(torch.int32), 15)
    return right(word & 0x7FFF0000, 16) | sign, word & _LOW


def from_limbs(limbs: Limbs) -> Tensor:
    """Join limbs to int32 words."""
    return left(limbs[0], 16) | limbs[1]


def _add(a: Limbs, b: Limbs) -> Limbs:
    low = a[1] + b[1]
    return (a[0] + b[0] + right(low, 16)) & _LOW, low & _LOW


def _turn(word: Limbs, bits: int) -> Limbs:
    """Rotate left."""
    high, low = word if bits < 16 else word[::-1]
    bits %= 16
    if bits == 0:
        return high, low
    return (
        (left(high, bits) | right(low, 16 - bits)) & _LOW,
        (left(low, bits) | right(high, 16 - bits)) & _LOW,
    )


def noise(seed: Tensor, positions: Tensor, ids: Tensor) -> Tensor:
    """Return float32 Gumbel noise of tokens `ids` at absolute `positions`; both broadcast.

    seed: [..., 2] int32
    """
    word, _ = threefry2x32((seed[..., 0], seed[..., 1]), (ids, positions), left, right)
    return gumbel(right(word, 9) & 0x7FFFFF)


def noise_in_limbs(seed: Tensor, positions: Tensor, ids: Tensor) -> Tensor:
    """Compute noise() as a graph for NeuronCores."""
    (high, low), _ = threefry_in_limbs((seed[..., 0], seed[..., 1]), (ids, positions))
    return gumbel_by_series(left(high, 7) | right(low, 9))


def gumbel(upper: Tensor) -> Tensor:
    """Return float32 Gumbel noise -log(-log(u)) with u = (upper + 1/2) / 2**23.

    upper: the upper 23 bits of words, as int32
    """
    uniform = (upper.to(torch.float32) + 0.5) * 2.0**-23
    return -torch.log(-torch.log(uniform))


def gumbel_by_series(upper: Tensor) -> Tensor:
    """Compute gumbel() where log() is exact to an absolute error only.

    The greatest noise belongs to u near 1. There a small absolute error of log(u) is a large
    relative one, or the logarithm is 0. So 1 - u is taken from the integer, exactly, and log(u) is
    summed as a series where 1 - u is small.
    """
    rest = ((upper ^ 0x7FFFFF).to(torch.float32) + 0.5) * 2.0**-23  # 1 - u
    series = rest * (1 / _TERMS)
    for power in range(_TERMS - 1, 0, -1):
        series = (series + 1 / power) * rest
    return -torch.log(torch.where(rest < SMALL, series, -torch.log(1.0 - rest)))
