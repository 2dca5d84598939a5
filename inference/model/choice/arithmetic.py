"""Operations for sampling: noise, top-k search, and placing numbers at token ids.

There are two implementations: HOST for CPUs and GPUs, and ENGINES for NeuronCores, whose engines
compute in float32 on rows of limited width. The noise is Gumbel noise from the random words of
Threefry-2x32-13: words are bit-identical in both, noise is equal up to the last digits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
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


WIDEST = 16_384
"""Maximum scores per row that the engines can search at once."""

_LANES = 128
"""Number of rows that the engines search at once."""

_BLOCK = 16
"""Number of scores in a block, which is contiguous in memory."""

_NARROW = 1024
"""Number of scores below which a row is not split further."""

_COLUMNS = 256
"""Number of ids in a block: a power of two, about the square root of the ids of a rank."""

LOWEST = -1e30
"""A score below all others; finite, since accelerators fail on inf."""


class Arithmetic(NamedTuple):
    """An implementation of the operations."""

    noise: Callable[[Tensor, Tensor, Tensor], Tensor]
    """(seed [..., 2], positions, ids) -> float32; see inference.model.choice.arithmetic.noise()."""

    top: Callable[[Tensor, int], tuple[Tensor, Tensor]]
    """(scores [..., N], k) -> the k greatest scores in descending order, and their int32 ids. The
    selection and order of equal scores are undefined.
    """

    place: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    """(ids [B, N, M], pairs [B, N, M, 2], share [V]) -> two tensors [B, N, V] with the first and
    the second number of each id in a rank's share, whose ids are consecutive; 0 for ids without a
    pair.
    """


def top(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:  # [..., N] -> [..., k], [..., k]
    """Return the k greatest scores of each row, in descending order, and their ids."""
    best, ids = torch.topk(scores, k, dim=-1)  # a list, not a named tuple, under torch_neuronx
    return best, ids.to(torch.int32)


def top_in_stages(
    scores: Tensor, k: int, widest: int = WIDEST
) -> tuple[Tensor, Tensor]:  # [..., N] -> [..., k], [..., k]
    """Compute top() by two-dimensional searches of up to `widest` scores each.

    A search takes a round per result. So wide rows are split into blocks, and only the k blocks
    with the greatest maxima are searched, which contain the k greatest scores.

    widest: at least 2 k
    """
    shape, rows = scores.shape[:-1], scores.reshape(-1, scores.shape[-1])
    search = _top_by_blocks if k > _BLOCK and rows.shape[1] > 2 * _BLOCK * k else _top_of_rows
    best, ids = search(rows, k, widest)
    return best.view(*shape, k), ids.view(*shape, k)


def _top_by_blocks(rows: Tensor, k: int, widest: int) -> tuple[Tensor, Tensor]:
    count, width = rows.shape
    blocks = -(-width // _BLOCK)
    cut = _widened(rows, blocks * _BLOCK).view(count, blocks, _BLOCK)
    _, chosen = _top_of_rows(cut.amax(-1), k, widest)  # [count, k]
    first = torch.arange(0, count * blocks, blocks, dtype=torch.int32, device=rows.device)
    looked_at = F.embedding(chosen + first[:, None], cut.flatten(0, 1)).view(count, k * _BLOCK)
    within = torch.arange(_BLOCK, dtype=torch.int32, device=rows.device)
    ids = (chosen[:, :, None] * _BLOCK + within).view(count, k * _BLOCK)
    best, places = _top_of_rows(looked_at, k, widest)
    return best, torch.gather(ids, 1, places)


def _top_of_rows(rows: Tensor, k: int, widest: int) -> tuple[Tensor, Tensor]:
    """Search pieces of rows for the lanes, while these are far wider than k, then the results."""
    count, width = rows.shape
    pieces = max(-(-width // widest), min(_LANES // count, width // max(4 * k, _NARROW)))
    if pieces <= 1:
        return top(rows, k)
    size = -(-width // pieces)
    rows = _widened(rows, pieces * size)
    best, ids = top(rows.reshape(count * pieces, size), k)
    first = torch.arange(0, pieces * size, size, dtype=torch.int32, device=rows.device)
    ids = (ids.view(count, pieces, k) + first[:, None]).view(count, pieces * k)
    best, places = _top_of_rows(best.view(count, pieces * k), k, widest)
    return best, torch.gather(ids, 1, places)


def place(ids: Tensor, pairs: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Compute Arithmetic.place by scatter, for a rank that has all ids."""
    room, places = ids.new_zeros((*ids.shape[:2], len(share)), dtype=pairs.dtype), ids.long()
    first, second = (room.scatter_add(-1, places, values) for values in pairs.unbind(-1))
    return first, second


def place_by_products(ids: Tensor, pairs: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Compute Arithmetic.place without scatter, which is slow on engines.

    Ids are divided into blocks. Two one-hot tables mark the block of each id, and its column in the
    block. Their product has the number at the id's place; ids of other ranks vanish.
    """
    size, places = len(share), ids.float() - share[:1].float()
    block = torch.floor(places / _COLUMNS)
    column, blocks = places - block * _COLUMNS, -(-size // _COLUMNS)
    steps = torch.arange(max(blocks, _COLUMNS), dtype=torch.float32, device=ids.device)
    in_block = (block[:, :, None] == steps[:blocks, None]).float()  # [B, N, blocks, M]
    within = (column[..., None] == steps[:_COLUMNS]).float()  # [B, N, M, columns]
    first, second = (
        torch.matmul(in_block, within * values[..., None]).flatten(2)[..., :size]
        for values in pairs.unbind(-1)
    )
    return first, second


def _widened(rows: Tensor, width: int) -> Tensor:
    if rows.shape[1] == width:
        return rows
    missing = torch.full_like(rows[:, : width - rows.shape[1]], LOWEST)
    return torch.cat((rows, missing), 1)


HOST = Arithmetic(noise, top, place)
ENGINES = Arithmetic(noise_in_limbs, top_in_stages, place_by_products)
