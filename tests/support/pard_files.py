"""PARD-2 checkpoints with the published names and shapes, and what such a draft computes beside its
target, by `transformers` and the published definition, without caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from tests.support.models import write_checkpoint

PUBLISHED_STATES = (-1, -8, -16, -24)
"""Of the target, as all published checkpoints have them: 23 layers are needed."""

SCALE = 0.02


def states_fields(states: Sequence[int], width: int, **others: Any) -> dict[str, Any]:
    """Fields of config.json, for a target of this hidden size."""
    return {
        "spd_type": "pard2",
        "pard2": True,
        "pard2_scale": SCALE,
        "pard2_target_dim": len(states) * width,
        "pard2_target_layers": list(states),
        "pard2_proj_bias": False,
    } | others


def write_projection(directory: Path, weight: Tensor, bias: Tensor | None = None) -> None:
    """The file that lies beside the checkpoint's weights."""
    tensors = {"target_proj.weight": weight}
    if bias is not None:
        tensors["target_proj.bias"] = bias
    torch.save(tensors, directory / "warp_model.bin")


def random_weight(hidden: int, features: int) -> Tensor:  # [hidden, features]
    """A projection whose part of an embedding is as large as the embedding, at SCALE."""
    generator = torch.Generator().manual_seed(5)
    return torch.randn(hidden, features, generator=generator) * 4


class Pair:
    """A random target and draft in two directories, and what they compute by `transformers`.

    hidden: size of the draft; the target's is 16
    """

    mask = 60

    def __init__(
        self, directory: Path, states: Sequence[int], layers: int, biased: bool = False
    ) -> None:
        self.target, self.draft = directory / "target", directory / "draft"
        self.states, self.hidden = states, 24
        write_checkpoint(self.target, 1, num_hidden_layers=layers)
        fields = states_fields(states, 16, pard2_proj_bias=biased, pard_token=self.mask)
        write_checkpoint(self.draft, 2, hidden_size=self.hidden, **fields)
        self.weight = random_weight(self.hidden, len(states) * 16)
        self.bias = torch.ones(self.hidden) * 9 if biased else None
        write_projection(self.draft, self.weight, self.bias)
        self._target, self._draft = (
            LlamaForCausalLM.from_pretrained(part, attn_implementation="eager").eval()
            for part in (self.target, self.draft)
        )

    @torch.no_grad()
    def expected(self, tokens: Sequence[int], below: Sequence[int] = ()) -> Tensor:  # [V]
        """Log-probabilities of what follows a committed text [n] with further tokens, candidates
        or masks, below its end. The target has computed all tokens but the text's last.
        """
        features = torch.zeros(1, len(self.states) * 16)
        if len(tokens) > 1:
            said = self._target(torch.tensor([list(tokens[:-1])]), output_hidden_states=True)
            by_token = torch.cat([said.hidden_states[state][0] for state in self.states], -1)
            features = torch.cat((features, by_token))
        features = torch.cat((features, features[-1:].repeat(len(below), 1)))
        added = features @ self.weight.T + (0 if self.bias is None else self.bias)
        embedded = self._draft.model.embed_tokens(torch.tensor([*tokens, *below]))
        logits = self._draft(inputs_embeds=(embedded + SCALE * added)[None]).logits
        return logits[0, -1].log_softmax(-1)
