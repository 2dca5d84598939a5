"""Train a DFlash head for a target, the embedded one by default, on the text that the pair was
trained on or on texts of one's own:

    python -m benchmarks.training.block_head --out HEAD_DIR [--target DIR --ids FILE --layers 2,16]

Blocks begin at random tokens of each text. Masks learn the target's distributions at their
positions, from its features of what comes before the block (arXiv 2602.06036, section 3). It is
written as its authors publish such heads; FILE is that of benchmarks.training.head.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import embedding

from benchmarks.harness import cpu_decoder, run
from benchmarks.training.head import MOST_POSITIONS, HeadFlags, computed, texts_of
from benchmarks.training.trainer import Trainer
from inference.model.attention import Sight
from inference.model.block_head import BlockHead, BlockHeadConfig
from inference.model.checkpoints.config import ModelConfig, read_config
from inference.model.decoder import Decoder
from inference.model.layers import Past, RMSNorm

FADING = 4.0
"""Masks after which a mask's weight in the loss has fallen to 1 / e."""


class Options(HeadFlags):
    depth: int = 2
    """layers of the head"""
    block: int = 8
    """tokens of a block"""
    anchors: int = 16
    """blocks in each text of a step"""
    mask: int = 1
    """id of the mask token"""
    causal: bool = False
    """a mask sees earlier ones only (JetSpec)"""


def new_head(target: Decoder, given: Options, positions: int) -> BlockHead:
    """A random head of the target's own width."""
    sizes = asdict(target.config) | {
        "layers": given.depth,
        "intermediate_size": given.inner,
        "rope_scaling": None,
        "qk_norm": True,
        "qkv_bias": False,
    }
    config = BlockHeadConfig(
        ModelConfig(**sizes), None, given.layers, given.block, given.mask, given.causal, False
    )
    head = BlockHead(config, positions, target.vocabulary)
    for module in head.modules():
        if isinstance(module, RMSNorm):
            torch.nn.init.ones_(module.weight)
    head.embeddings = target.model.embed_tokens.weight.detach()
    head.output = target.head_weight().detach()
    head.norm.weight.data.copy_(target.model.norm.weight)
    return head


def teach(
    head: BlockHead, target: Decoder, texts: Iterable[Tensor], steps: int, anchors: int
) -> None:
    """Train the head, a step for each of the texts, [N, L] int64."""
    learning = list(head.named_parameters())
    trainer = Trainer(learning, "head", steps)
    for tokens in islice(texts, steps):
        trainer.update(_loss(head, target, tokens, anchors))
    head.requires_grad_(False)


def _loss(head: BlockHead, target: Decoder, tokens: Tensor, anchors: int) -> Tensor:
    """Cross-entropy of the target's and the masks' distributions, over random blocks."""
    states, logits = computed(target, tokens, head.config.kept)
    count, length = tokens.shape
    block = head.config.block
    starts = torch.randint(1, length - block + 1, (count, anchors))
    places = (starts[..., None] + torch.arange(block)).view(count, -1)  # [N, A * block]
    guessed = _guesses(head, tokens, states, starts, places)
    places = places.view(count, anchors, block)[..., 1:].reshape(count, -1)
    wanted = logits.softmax(-1).gather(1, (places - 1)[..., None].expand(-1, -1, logits.shape[-1]))
    loss = -(wanted * guessed.log_softmax(-1)).sum(-1).view(count, anchors, -1).mean((0, 1))
    weights = torch.exp(-torch.arange(block - 1) / FADING)
    return (loss * weights).sum() / weights.sum()


def _guesses(
    head: BlockHead, tokens: Tensor, states: Tensor, starts: Tensor, places: Tensor
) -> Tensor:
    """Return logits of the masks of blocks [N, A] at these places: [N, A * (block - 1), V]."""
    (count, length), (_, anchors), block = tokens.shape, starts.shape, head.config.block
    every = torch.arange(length).expand(count, -1)
    past = head.inject(states, every)
    of_text = torch.full_like(places, head.config.mask)
    of_text[:, ::block] = tokens.gather(1, starts)
    own = torch.ones(block, block, dtype=torch.bool)
    inside = torch.kron(torch.eye(anchors), (own.tril() if head.config.causal else own).float())
    before = every[:, None] < starts.repeat_interleave(block, 1)[..., None]
    cos, sin = (table[places][:, :, None] for table in (head.cos, head.sin))
    sight = Sight(cos, sin, before, inside.bool().expand(count, -1, -1))
    x = embedding(of_text, head.embeddings)
    for layer, keys, values in zip(head.layers, past.keys, past.values, strict=True):
        x, _, _ = layer(x, Past(keys, values, None, None), sight)
    x = x.view(count, anchors, block, -1)[:, :, 1:].flatten(1, 2)
    return head.logits(head.norm(x))


def save_head(head: BlockHead, directory: Path) -> None:
    """Write config.json and model.safetensors, as such heads are published."""
    directory.mkdir(parents=True, exist_ok=True)
    layer, config = head.config.layer, head.config
    same = ("vocab_size", "hidden_size", "intermediate_size", "head_dim", "rope_theta")
    raw = {
        **{name: getattr(layer, name) for name in same},
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "num_hidden_layers": layer.layers,
        "num_attention_heads": layer.heads,
        "num_key_value_heads": layer.kv_heads,
        "max_position_embeddings": layer.max_positions,
        "hidden_act": "silu",
        "rms_norm_eps": layer.norm_eps,
        "block_size": config.block,
        "dflash_config": {
            "mask_token_id": config.mask,
            "target_layer_ids": [kept - 1 for kept in config.kept],
            "causal_head": config.causal,
        },
    }
    (directory / "config.json").write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")
    tensors = {name: part.contiguous() for name, part in head.named_parameters()}
    save_file(tensors, directory / "model.safetensors")


def main(given: Options) -> None:
    torch.manual_seed(given.seed)
    config = read_config(given.target)
    positions = min(config.max_positions, MOST_POSITIONS)
    target = cpu_decoder(given.target, positions, config.vocab_size, torch.float32)
    head = new_head(target, given, positions)
    teach(head, target, texts_of(given), given.steps, given.anchors)
    save_head(head, given.out)


if __name__ == "__main__":
    run(Options, main)
