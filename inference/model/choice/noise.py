"""The noise of the sampling contract: Gumbel noise from the random words of Threefry-2x32-13.

There are two implementations: `noise` for devices with 32-bit integers and exact logarithms, and
`noise_in_limbs` for devices whose vector units compute in float32, such as NeuronCores. Their
random words are bit-identical; their noise is equal up to the last digits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inference.sampling import PARITY, ROTATIONS, ROUNDS, threefry2x32

_LOW = 0xFFFF

SMALL = 2.0**-5
"""The value of 1 - u below which noise_in_limbs() computes log(u) by a series."""

_TERMS = 5  # omits 5e-9 of the sum at SMALL

Limbs = tuple[Tensor, Tensor]
"""A 32-bit word as its high and its low 16 bits, each in an int32 tensor."""


def left(x: Tensor, bits: int) -> Tensor:
    """Shift left."""
    return torch.bitwise_left_shift(
        x, torch.scalar_tensor(bits, dtype=torch.int32, device=x.device)
    )


def right(x: Tensor, bits: int) -> Tensor:
    """Arithmetic shift right, which preserves the sign.

    Both operands are tensors, because torch_xla converts x >> number to a division that rounds
    towards 0.
    """
    return torch.bitwise_right_shift(
        x, torch.scalar_tensor(bits, dtype=torch.int32, device=x.device)
    )


def threefry_in_limbs(
    key: tuple[Tensor, Tensor], counter: tuple[Tensor, Tensor]
) -> tuple[Limbs, Limbs]:
    """Compute threefry2x32() (inference/sampling.py) on 16-bit limbs.

    Intermediates have at most 31 bits and sums at most 18, and negative numbers are never shifted.
    So this is exact on vector units that add in float32 and only have logical shifts.
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
    """Split int32 words into limbs, without shifting negative numbers."""
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
    """Return float32 Gumbel noise for token ids at absolute positions, which broadcast.

    seed: [..., 2] int32
    """
    word, _ = threefry2x32((seed[..., 0], seed[..., 1]), (ids, positions), left, right)
    return gumbel(right(word, 9) & 0x7FFFFF)


def noise_in_limbs(seed: Tensor, positions: Tensor, ids: Tensor) -> Tensor:
    """Compute noise() by operations that are exact on NeuronCores."""
    (high, low), _ = threefry_in_limbs((seed[..., 0], seed[..., 1]), (ids, positions))
    return gumbel_by_series(left(high, 7) | right(low, 9))


def gumbel(upper: Tensor) -> Tensor:
    """Return float32 Gumbel noise -log(-log(u)) with u = (upper + 1/2) / 2**23.

    upper: the upper 23 bits of words, as int32
    """
    uniform = (upper.to(torch.float32) + 0.5) * 2.0**-23
    return -torch.log(-torch.log(uniform))


def gumbel_by_series(upper: Tensor) -> Tensor:
    """Compute gumbel() on devices whose log() only has a small absolute error.

    The greatest noise is at u near 1, where this would be a large relative error of log(u). So
    1 - u is computed exactly from the integer, and log(u) by a series if 1 - u is small.
    """
    rest = ((upper ^ 0x7FFFFF).to(torch.float32) + 0.5) * 2.0**-23  # 1 - u
    series = rest * (1 / _TERMS)
    for power in range(_TERMS - 1, 0, -1):
        series = (series + 1 / power) * rest
    return -torch.log(torch.where(rest < SMALL, series, -torch.log(1.0 - rest)))
