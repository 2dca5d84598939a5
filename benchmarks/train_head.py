"""Train an EAGLE-3 head for the embedded target, on the text that the pair was trained on:

    python -m benchmarks.train_head --out HEAD_DIR

The head learns what the target says of each position from the target's features, then from its own
states for as many levels as it is asked for (the training-time test of Li et al. 2025, "EAGLE-3").
It is written as such heads are published. `python -m benchmarks.draft_beside` says what it brings.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.corpus import checked_listing, read_texts
from benchmarks.harness import command, cpu_decoder
from inference.model.cache import KeysValues
from inference.model.config import ModelConfig
from inference.model.decoder import Decoder, Past, RMSNorm, Sight
from inference.model.eagle import EagleHead
from inference.model.eagle_config import HeadConfig
from inference.text import Tokenizer
from outrider.models.loading import EMBEDDED

KEPT, INNER = (2, 4, 6), 512
LENGTH, WINDOWS = 128, 8
FADING = 0.8


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
    head: EagleHead,
    target: Decoder,
    texts: Iterable[Tensor],
    *,
    steps: int,
    levels: int,
    rate: float,
) -> Iterator[float]:
    """Train the head, a step for each of the texts, [N, L] int64; yields each step's loss in nats.
    Embeddings stay the target's.

    levels: depths of candidates that it learns for, each from its own states of the one before
    rate: of AdamW at first; it falls over the steps
    """
    learning = [one for name, one in head.named_parameters() if "embed" not in name]
    for parameter in learning:
        parameter.requires_grad_(True)
    optimizer = torch.optim.AdamW(learning, lr=rate, betas=(0.9, 0.98), weight_decay=0.0)
    falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, steps)
    for tokens in islice(texts, steps):
        loss = _loss(head, target, tokens, levels)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(learning, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        falling.step()
        yield loss.item()
    head.requires_grad_(False)


def _loss(head: EagleHead, target: Decoder, tokens: Tensor, levels: int) -> Tensor:
    """Cross-entropy of the target's and the head's distributions, over levels."""
    states, logits = _computed(target, tokens, head.config.kept)
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
    out = target(tokens.int(), rows, positions, unseen, tree, None, empty, kept=kept)
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
    raw = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "vocab_size": layer.vocab_size,
        "draft_vocab_size": head.config.draft_vocabulary,
        "hidden_size": layer.hidden_size,
        "intermediate_size": layer.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": layer.heads,
        "num_key_value_heads": layer.kv_heads,
        "head_dim": layer.head_dim,
        "max_position_embeddings": layer.max_positions,
        "hidden_act": "silu",
        "rms_norm_eps": layer.norm_eps,
        "rope_theta": layer.rope_theta,
        "eagle_aux_hidden_state_layer_ids": list(head.config.kept),
    }
    (directory / "config.json").write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")
    tensors = {
        name: one.contiguous() for name, one in head.named_parameters() if "embed" not in name
    }
    save_file(tensors, directory / "model.safetensors")


def windows(stream: Tensor, seed: int) -> Iterator[Tensor]:
    """Endless batches [WINDOWS, LENGTH] of the stream, each window from a random place."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(stream) - LENGTH, (WINDOWS,), generator=generator)
        yield torch.stack([stream[start : start + LENGTH] for start in starts.tolist()])


def main() -> None:
    parser = command(__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the head")
    parser.add_argument("--steps", type=int, default=2000, help="training steps")
    parser.add_argument("--levels", type=int, default=2, help="depths that it learns for")
    parser.add_argument("--rate", type=float, default=3e-3, help="learning rate at first")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument(
        "--allow-different-files", action="store_true", help="go on where local files differ"
    )
    options: argparse.Namespace = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    listing = checked_listing(EMBEDDED / "training_files.json", options.allow_different_files)
    tokenizer = Tokenizer(EMBEDDED / "target")
    stream = torch.tensor([
        token for text in read_texts(listing, "train") if text for token in tokenizer.encode(text)
    ])  # fmt: skip
    target = cpu_decoder(EMBEDDED / "target", 1024, tokenizer.vocabulary, torch.float32)
    head = new_head(target, KEPT, INNER, 1024)
    texts = windows(stream, options.seed)
    losses = teach(
        head, target, texts, steps=options.steps, levels=options.levels, rate=options.rate
    )
    for step, loss in enumerate(losses, 1):
        if step % 20 == 0 or step == options.steps:
            print(f"step {step}/{options.steps} loss {loss:.3f}", flush=True)
            save_head(head, options.out)


if __name__ == "__main__":
    main()
