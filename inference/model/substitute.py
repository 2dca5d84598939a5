"""A target's substitute, which drafts for it: the target's own layers with 4-bit weights (SubSpec,
arXiv 2509.18344). Nothing is trained, and it agrees with its target far more often than a smaller
model does. Its text is not its target's.

In the target's process it shares embeddings, final norm and head. Elsewhere it is a copy of its
own, which has a 4-bit head, too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from inference.model.checkpoint import Loading
from inference.model.decoder import Decoder
from inference.model.layer_offload import load_offloaded
from inference.model.quantized import quantize


def substitute_of(decoder: Decoder) -> Decoder:
    """Return the substitute of this decoder, which stays as it is. The layers are visited one after
    the other, so they may be offloaded.

    Raises UnsupportedModel and InvalidRequest as quantize() does.
    """
    with torch.device("meta"):
        draft = Decoder(decoder.config, len(decoder.cos), decoder.vocabulary)
    draft.cos, draft.sin, draft.lm_head = decoder.cos, decoder.sin, decoder.lm_head
    draft.model.embed_tokens, draft.model.norm = decoder.model.embed_tokens, decoder.model.norm
    draft.model.layers = nn.ModuleList(
        quantize(copy.deepcopy(layer), "int4") for layer in decoder.model.layers
    )
    return draft.eval()


def load_substitute(
    directory: Path,
    *,
    positions: int,
    vocabulary: int,
    dtype: torch.dtype | None,
    device: torch.device,
    tell: Callable[[Loading], None] = lambda loading: None,
) -> Decoder:
    """Load a checkpoint's substitute with a 4-bit head. Layers are rounded as they are read.
    Arguments and errors are those of load_decoder().
    """
    decoder = load_offloaded(
        directory,
        positions=positions,
        vocabulary=vocabulary,
        dtype=dtype,
        device=device,
        offload="disk",
        tell=tell,
    )
    return quantize(substitute_of(decoder), "int4")
