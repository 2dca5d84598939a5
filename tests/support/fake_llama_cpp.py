"""A llama.cpp context that can be computed by hand: cells of sequences, with the library's rules.

A cell holds the tokens that its key was computed from. Logits are a hash of what a node sees, so a
cell that is missing, or one too many, is another text. What llama.cpp refuses is an error here.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from inference.backends import Segment
from inference.backends.eager import choose_at
from inference.backends.gguf.library import SEQUENCES, TokenBatch
from inference.backends.gguf.model import Computation, GgufModel
from inference.errors import Unavailable
from inference.sampling import SamplingParams

VOCABULARY = 59
PADDED = 64
"""Rows of the head: the last five ids are of no token."""


class Cell(NamedTuple):
    """A key: a hash of the tokens that it was computed from, and its number."""

    seen: int
    number: int


def seen_after(tokens: Sequence[int], model: int) -> int:
    """A hash of what the last of these tokens sees."""
    return zlib.crc32(np.array(tokens, dtype=np.int32).tobytes(), model)


def logits_after(seen: int) -> NDArray[np.float32]:  # [PADDED]
    """What the model says there; ids beyond the vocabulary are the likeliest."""
    logits = np.random.default_rng(seen).normal(0, 3, PADDED).astype(np.float32)
    logits[VOCABULARY:] = 100
    return logits


def own_text(prompt: Sequence[int], params: SamplingParams, count: int) -> list[int]:
    """The model's text by hand: the choice after each whole prefix."""
    tokens = list(prompt)
    for at in range(len(prompt), len(prompt) + count):
        logits = torch.from_numpy(logits_after(seen_after(tokens, 0))[None, None, :VOCABULARY])
        here = np.array([at - 1])
        sees = np.ones((1, 1), dtype=bool)
        segment = Segment(0, np.array(tokens[-1:]), here, here, sees, sees, here * 0, params)
        tokens += choose_at(logits, torch.tensor([[at]]), [segment])[0].tokens.tolist()
    return tokens[len(prompt) :]


class Cells:
    """A LlamaContext. room: cells that there are. fails: the next decode stops half-way."""

    def __init__(self, model: int = 0, room: int = 10_000, sequences: int = SEQUENCES) -> None:
        self.fails, self.decodes, self.tokens, self.sequences = False, 0, 0, sequences
        self._model, self._room, self._cells = model, room, dict[int, list[Cell]]()

    @property
    def used(self) -> int:
        return len({cell.number for cells in self._cells.values() for cell in cells})

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        held = self._cells.setdefault(target, [])
        assert len(held) == start, "a sequence has one cell at each position"
        held += self._cells[source][start:end]
        assert len(held) == end

    def remove(self, sequence: int, start: int) -> None:
        del self._cells.setdefault(sequence, [])[start:]

    def decode(self, batch: TokenBatch) -> NDArray[np.float32]:
        tokens, positions, sequences, picked = batch
        self.decodes, self.tokens = self.decodes + 1, self.tokens + len(tokens)
        for ids in sequences:
            above = [self._cells.setdefault(sequence, []) for sequence in ids]
            assert above, "a token is of no sequence"
            assert len({tuple(cells[-1:]) for cells in above}) == 1, "coupled sequences differ"
        made = list[NDArray[np.float32]]()
        for at, (token, position, ids) in enumerate(zip(tokens, positions, sequences, strict=True)):
            if self.fails and 2 * at >= len(tokens):
                self.fails = False
                raise Unavailable("llama.cpp computed nothing (code -3): made to fail")
            above = [self._cells.setdefault(sequence, []) for sequence in ids]
            assert all(len(cells) == position for cells in above), "positions are not consecutive"
            seen = seen_after([int(token)], above[0][-1].seen if above[0] else self._model)
            cell = Cell(seen, self.tokens * 1000 + at)
            for cells in above:
                cells.append(cell)
            if picked[at]:
                made.append(logits_after(seen))
        assert self.used <= self._room, "llama.cpp has no free cell"
        return np.array(made, dtype=np.float32).reshape(-1, PADDED)


class StateCells(Cells):
    """A context that keeps the state behind the last token of a sequence, and cannot go back."""

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        assert (start, end) == (0, len(self._cells[source])), "a state is behind a whole sequence"
        super().copy(source, target, start, end)

    def remove(self, sequence: int, start: int) -> None:
        assert not start, "no state is behind a part of a sequence"
        super().remove(sequence, start)

    def decode(self, batch: TokenBatch) -> NDArray[np.float32]:
        assert all(len(ids) == 1 for ids in batch.sequences), "lines have sequences of their own"
        assert all(0 <= ids[0] < self.sequences for ids in batch.sequences)
        return super().decode(batch)


def model_of(computation: Computation, max_nodes: int = 16) -> GgufModel:
    return GgufModel(
        computation,
        max_nodes=max_nodes,
        vocabulary=VOCABULARY,
        kind="tiny F32",
        threads=1,
        device="cpu",
    )
