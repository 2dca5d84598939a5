"""Train an EAGLE-3 head for a target, the embedded one by default, on the text that the pair was
trained on or on texts of one's own:

    python -m benchmarks.training.head --out HEAD_DIR [--target DIR --ids FILE --layers 2,16,29]

The head learns what the target says of each position from the target's features, then from its own
states for as many levels as it is asked for (the training-time test of Li et al. 2025, "EAGLE-3").
It is written as such heads are published. FILE holds texts as rows of token ids, in JSON and all of
one length; each step learns all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import islice, repeat
from pathlib import Path
from typing import Annotated, TypeAlias

import torch
from pydantic import BeforeValidator
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from benchmarks.harness import FileName, Folder, cpu_decoder, run
from benchmarks.training.corpus import TrainingFlags, prepared, read_texts
from benchmarks.training.trainer import Trainer, batches, token_stream
from inference.flags.group import Metavar
from inference.flags.values import Natural, comma_separated
from inference.model.cache import KeysValues
from inference.model.checkpoints.config import ModelConfig, read_config
from inference.model.decoder import Decoder
from inference.model.eagle_head import EagleHead, HeadConfig
from inference.model.layers import Past, RMSNorm, Sight
from outrider.models.found_model import EMBEDDED

MOST_POSITIONS, LENGTH = 1024, 128
FADING = 0.8

Layers: TypeAlias = Annotated[
    tuple[Natural, ...], BeforeValidator(comma_separated), Metavar("N,...")
]


def new_head(target: Decoder, kept: tuple[int, ...], inner: int, positions: int) -> EagleHead:
    """A head of the target's own width, with the target's embeddings. It begins with the target's
    output layer and last norm, and is random elsewhere.

    inner: width of its MLP
    """
    sizes = asdict(target.config) | {"layers": 1, "intermediate_size": inner, "rope_scaling": None}
    layer = ModelConfig(**sizes)
    features = len(kept) * layer.hidden_size
    config = HeadConfig(layer, layer.vocab_size, kept, features, norms_residual=False)
    head = EagleHead(config, positions, target.vocabulary)
    for module in head.modules():
        if isinstance(module, RMSNorm):
            torch.nn.init.ones_(module.weight)
    head.embed_tokens.weight = target.model.embed_tokens.weight
    head.lm_head.weight.data.copy_(target.head_weight())
    head.norm.weight.data.copy_(target.model.norm.weight)
    return head


def teach(
    head: EagleHead, target: Decoder, texts: Iterable[Tensor], *, steps: int, levels: int
) -> None:
    """Train the head, a step for each of the texts, [N, L] int64. Embeddings stay the target's.

    levels: depths of candidates that it learns for, each from its own states of the one before
    """
    learning = [(name, one) for name, one in head.named_parameters() if "embed" not in name]
    for _, parameter in learning:
        parameter.requires_grad_(True)
    trainer = Trainer(learning, "head", steps)
    for tokens in islice(texts, steps):
        trainer.update(_loss(head, target, tokens, levels))
    head.requires_grad_(False)


def _loss(head: EagleHead, target: Decoder, tokens: Tensor, levels: int) -> Tensor:
    """Cross-entropy of the target's and the head's distributions, over levels."""
    states, logits = _computed(target, tokens, head.config.feature_layers)
    shares, loss = logits.softmax(-1), torch.zeros(())
    for level, guessed in enumerate(_guesses(head, tokens, states, levels)):
        wanted = shares[:, level + 1 :]
        named = guessed[:, : wanted.shape[1]].log_softmax(-1)
        loss = loss - FADING**level * (wanted * named).sum(-1).mean()
    return loss


@torch.no_grad()
def _computed(target: Decoder, tokens: Tensor, kept: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The target's features [N, L, F] and logits [N, L, V] for whole texts."""
    count, length = tokens.shape
    rows, empty = torch.zeros(count, dtype=torch.int32), _nothing(target.config)
    positions = torch.arange(length, dtype=torch.int32).expand(count, -1)
    unseen = torch.zeros(count, 1, 1, dtype=torch.int32)
    tree = torch.ones(length, length, dtype=torch.int32).tril().expand(count, -1, -1)
    out = target(tokens.int(), rows, positions, unseen, tree, None, empty, feature_layers=kept)
    assert out.features is not None, "layers are kept"
    return out.features, target.logits(out.states)


def _nothing(config: ModelConfig) -> KeysValues:
    """A cache of one row with one slot, which nobody sees."""
    slot = torch.zeros(1, 1, config.kv_heads * config.head_dim)
    return KeysValues((slot,) * config.layers, (slot,) * config.layers)


def _guesses(head: EagleHead, tokens: Tensor, states: Tensor, levels: int) -> Iterator[Tensor]:
    """Yield the head's logits [N, L - 1, V] at each level. At level j, entry i is of token
    i + 1 + j and stands for a candidate j below a root at i + 1; the last j have no token.
    """
    count, entries = tokens.shape[0], tokens.shape[1] - 1
    slot = _nothing(head.config.layer).keys[0].expand(count, -1, -1)
    features = head.fc(states[:, :-1])
    unseen = torch.zeros(count, 1, 1, dtype=torch.bool)
    tree = torch.ones(entries, entries, dtype=torch.bool).tril()
    own = torch.eye(entries, dtype=torch.bool)
    keys, values = slot[:, :0], slot[:, :0]
    for level in range(levels):
        at = torch.arange(entries) + level + 1
        cos, sin = (table[at][None, :, None] for table in (head.cos, head.sin))
        sight = Sight(cos, sin, unseen, tree.expand(count, -1, -1))
        embedded = head.embed_tokens(tokens[:, 1:].roll(-level, 1))
        past = Past(slot, slot, keys, values)
        features, new_keys, new_values = head.midlayer(embedded, features, past, sight)
        yield head.logits(features)
        keys, values = torch.cat((keys, new_keys), 1), torch.cat((values, new_values), 1)
        tree = torch.cat((tree, own), 1)


def save_head(head: EagleHead, directory: Path) -> None:
    """Write config.json and model.safetensors, as such heads are published."""
    directory.mkdir(parents=True, exist_ok=True)
    layer = head.config.layer
    same = ("vocab_size", "hidden_size", "intermediate_size", "head_dim", "rope_theta")
    raw = {
        **{name: getattr(layer, name) for name in same},
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "draft_vocab_size": head.config.draft_vocabulary,
        "num_hidden_layers": 1,
        "num_attention_heads": layer.heads,
        "num_key_value_heads": layer.kv_heads,
        "max_position_embeddings": layer.max_positions,
        "hidden_act": "silu",
        "rms_norm_eps": layer.norm_eps,
        "eagle_aux_hidden_state_layer_ids": list(head.config.feature_layers),
    }
    (directory / "config.json").write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")
    tensors = {
        name: one.contiguous() for name, one in head.named_parameters() if "embed" not in name
    }
    save_file(tensors, directory / "model.safetensors")


class Options(TrainingFlags):
    out: Folder
    """of the head"""
    target: Folder = EMBEDDED / "target"
    ids: FileName | None = None
    """texts to learn from"""
    layers: Layers = (2, 4, 6)
    """of the target, whose states it reads"""
    inner: int = 512
    """width of its MLP"""
    steps: int = 2000
    levels: int = 2
    """depths that it learns for"""


def texts_of(given: Options) -> Iterator[Tensor]:
    """Endless batches [N, L] of what is learnt from."""
    if given.ids is not None:
        return repeat(torch.tensor(json.loads(given.ids.read_text(encoding="utf-8"))))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(EMBEDDED / "target")
    stream = token_stream(tokenizer, read_texts(prepared(given, EMBEDDED), "train"))
    generator = torch.Generator().manual_seed(given.seed)
    return (inputs for inputs, _ in batches(stream, LENGTH, generator))


def main(given: Options) -> None:
    torch.manual_seed(given.seed)
    texts = texts_of(given)
    config = read_config(given.target)
    positions = min(config.max_positions, MOST_POSITIONS)
    target = cpu_decoder(given.target, positions, config.vocab_size, torch.float32)
    head = new_head(target, given.layers, given.inner, positions)
    teach(head, target, texts, steps=given.steps, levels=given.levels)
    save_head(head, given.out)


if __name__ == "__main__":
    run(Options, main)
