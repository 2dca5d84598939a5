"""Operations that choosing a token needs: noise, the greatest scores, and placing numbers at ids.

There are two implementations of the same functions. HOST is for CPUs and GPUs. ENGINES is for
NeuronCores, whose engines work on float32 and on rows of limited width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.model.choice.noise import noise, noise_in_limbs

WIDEST = 16_384
"""Maximum scores of a row that the engines can search at once."""

_LANES = 128
"""Number of rows that the engines search at once."""

_BLOCK = 16
"""Number of scores in a block, which is read as one run of memory."""

_NARROW = 1024
"""Number of scores of a row that is not worth a further cut."""

_COLUMNS = 256
"""Number of ids in a block, about the square root of the ids in a share. A power of two."""

LOWEST = -1e30
"""Less than any score. Finite, because accelerators fail on infinities."""


class Arithmetic(NamedTuple):
    """One way of computing a choice."""

    noise: Callable[[Tensor, Tensor, Tensor], Tensor]
    """(seed [..., 2], positions, ids) -> float32; see inference.model.choice.noise.noise()."""

    top: Callable[[Tensor, int], tuple[Tensor, Tensor]]
    """(scores [..., N], k) -> the k greatest scores in descending order, and their int32 ids.

    Which of several equal scores are returned, and in which order, is undefined.
    """

    place: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    """(ids [B, N, M], pairs [B, N, M, 2], share [V]) -> the first and the second number of each id
    of a rank's share [B, N, V], which has consecutive ids; 0 for an id that is not named.
    """


def top(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:  # [..., N] -> [..., k], [..., k]
    """Return the k greatest scores of each row, in descending order, and their ids."""
    best, ids = torch.topk(scores, k, dim=-1)  # a list, not a named tuple, under torch_neuronx
    return best, ids.to(torch.int32)


def top_in_stages(
    scores: Tensor, k: int, widest: int = WIDEST
) -> tuple[Tensor, Tensor]:  # [..., N] -> [..., k], [..., k]
    """Compute top() from two-dimensional searches of up to `widest` scores each.

    A search takes as many rounds as it finds scores. So wide rows are cut into blocks, and only
    the k blocks with the greatest maxima are searched: they hold the k greatest scores.

    widest: 2 k at least
    """
    shape, rows = scores.shape[:-1], scores.reshape(-1, scores.shape[-1])
    found = _top_by_blocks if k > _BLOCK and rows.shape[1] > 2 * _BLOCK * k else _top_of_rows
    best, ids = found(rows, k, widest)
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
    """Cut rows into pieces, one for each lane while pieces are far wider than k, and search the
    best of all pieces again.
    """
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
    """Return the pairs of numbers at their ids, of a share that has all ids."""
    room, places = ids.new_zeros((*ids.shape[:2], len(share)), dtype=pairs.dtype), ids.long()
    first, second = (room.scatter_add(-1, places, part) for part in pairs.unbind(-1))
    return first, second


def place_by_products(ids: Tensor, pairs: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Compute place() without writing single numbers, which takes engines long.

    Ids are divided into blocks. Two tables of ones and zeros mark the block of each listed id, and
    its column there. Their product has the id's number at its place; ids of other shares vanish.
    """
    size, places = len(share), ids.float() - share[:1].float()
    block = torch.floor(places / _COLUMNS)
    column, blocks = places - block * _COLUMNS, -(-size // _COLUMNS)
    steps = torch.arange(max(blocks, _COLUMNS), dtype=torch.float32, device=ids.device)
    held = (block[:, :, None] == steps[:blocks, None]).float()  # [B, N, blocks, M]
    within = (column[..., None] == steps[:_COLUMNS]).float()  # [B, N, M, columns]
    first, second = (
        torch.matmul(held, within * part[..., None]).flatten(2)[..., :size]
        for part in pairs.unbind(-1)
    )
    return first, second


def _widened(rows: Tensor, width: int) -> Tensor:
    """Return the rows with lowest scores at their ends."""
    if rows.shape[1] == width:
        return rows
    missing = torch.full_like(rows[:, : width - rows.shape[1]], LOWEST)
    return torch.cat((rows, missing), 1)


HOST = Arithmetic(noise, top, place)
ENGINES = Arithmetic(noise_in_limbs, top_in_stages, place_by_products)
