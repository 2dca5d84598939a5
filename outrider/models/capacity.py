"""Capacity of a loaded model, and the part of a draft that is kept: matrices of fewer bits, and a
head of frequent tokens.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from outrider.options.groups import Quantization

if TYPE_CHECKING:
    from inference.model.decoder import Decoder


class Capacity(NamedTuple):
    """Room of a loaded model: texts, and tokens of each."""

    rows: int
    sequence_length: int  # prompt and output together
    spare: int  # slots a row beyond the sequence, which hold trees
    max_nodes: int  # of one call
    ids: int | None = None  # ids that are proposed are below this; None: all of the tokenizer

    def vocabulary(self, whole: int) -> int:
        """Number of a tokenizer's ids that the model computes chances of."""
        return whole if self.ids is None else min(whole, self.ids)

    @property
    def slots(self) -> int:
        """Slots of a row."""
        return self.sequence_length + self.spare


class Reduction(NamedTuple):
    """Reduction of a checkpoint. By default all is kept."""

    matrices: Quantization | None = None  # None: as they are stored
    head_tokens: int | None = None  # lowest ids of the tokenizer that the head keeps

    def vocabulary(self, whole: int) -> int:
        """Number of the tokenizer's ids that the head has."""
        return whole if self.head_tokens is None else min(whole, self.head_tokens)

    def apply(self, decoder: Decoder) -> Decoder:
        """Reduce a decoder that was loaded for vocabulary(), in place. Raises InvalidRequest and
        UnsupportedModel for what cannot be computed.
        """
        if self.head_tokens is not None:
            from inference.model.checkpoint import cut_head

            cut_head(decoder)
        if self.matrices is not None:
            from inference.model.quantized import quantize

            quantize(decoder, self.matrices)
        return decoder

    def fingerprint(self, whole: str) -> str:
        """The fingerprint of a checkpoint that was reduced, from that of the whole one."""
        if self == WHOLE:
            return whole
        return hashlib.sha256(f"{whole} {self}".encode()).hexdigest()[:32]

    def __str__(self) -> str:
        """Words that follow the precision where a model is described."""
        matrices = f", {self.matrices} matrices" if self.matrices else ""
        return matrices + (f", a head of {self.head_tokens} tokens" if self.head_tokens else "")


WHOLE = Reduction()
