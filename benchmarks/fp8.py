"""How many greedy choices stay when a model's matrices are 8-bit floats with a scale an output.

    python -m benchmarks.fp8 [--model DIR] [--prompts 12] [--json FILE]

An emulation of weights that a Neuron core could read in half the bytes: each matrix, the head
included, in e4m3 up to 240 (the largest finite number of Trainium's e4m3), multiplied by bfloat16
states, and the product by a float32 scale for each output. Embeddings and norms stay bfloat16. The
share is of the tokens of float32's own greedy texts that a model chooses, too, given those before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import inference
from benchmarks.harness import command, cpu_decoder, show
from benchmarks.int8 import agreement, own_text
from inference.backends.eager import EagerModel
from inference.model.decoder import MLP, Attention, Decoder
from inference.text import Tokenizer

_TARGET = Path(inference.__file__).parent / "data" / "target"
_TEXTS = sorted(Path(inference.__file__).parent.glob("*/*.py"))
"""Files whose first tokens are the prompts."""
_LARGEST = 240.0
_TINY = 1e-20
_CAPACITY, _PROMPT = 512, 128  # tokens


class Fp8Linear(nn.Module):
    """x W' * scale + b, with W [outputs, inputs] in e4m3 and a scale for each output."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        scale = weight.float().abs().amax(1).clamp(min=_TINY) / _LARGEST
        self.levels = (weight.float() / scale[:, None]).to(torch.float8_e4m3fn)
        self.scale, self.bias = scale, bias

    def forward(self, x: Tensor, vocabulary: int | None = None) -> Tensor:
        product = (F.linear(x, self.levels.to(x.dtype)).float() * self.scale).to(x.dtype)
        return product if self.bias is None else product + self.bias


def in_fp8(decoder: Decoder) -> Decoder:
    """The decoder with its matrices replaced, in place; a shared head gets a table of its own."""
    for owner in [module for module in decoder.modules() if isinstance(module, (Attention, MLP))]:
        for name, linear in list(owner.named_children()):
            if isinstance(linear, nn.Linear):
                owner.add_module(name, Fp8Linear(linear.weight, linear.bias))
    head = decoder.model.embed_tokens if decoder.config.tied else decoder.lm_head
    decoder.lm_head = Fp8Linear(head.weight[: decoder.vocabulary])
    decoder.config = replace(decoder.config, tied=False)
    return decoder


def measure(directory: Path, prompts: list[str]) -> Mapping[str, object]:
    tokenizer = Tokenizer(directory)

    def eager(dtype: torch.dtype, change: Callable[[Decoder], Decoder] | None = None) -> EagerModel:
        decoder = cpu_decoder(directory, _CAPACITY, tokenizer.vocabulary, dtype)
        if change is not None:
            decoder = change(decoder)
        return EagerModel(decoder, rows=1, capacity=_CAPACITY, max_nodes=256)

    whole = eager(torch.float32)
    models = {
        "bfloat16": eager(torch.bfloat16),
        "fp8, bfloat16 states": eager(torch.bfloat16, in_fp8),
    }
    given = [tokenizer.encode(prompt)[:_PROMPT] for prompt in prompts]
    texts = [own_text(whole, prompt) for prompt in given]
    return {"prompts": len(prompts), "tokens": sum(map(len, texts))} | {
        f"{name} agrees with float32": round(
            float(np.mean([agreement(model, *pair) for pair in zip(given, texts, strict=True)])), 3
        )
        for name, model in models.items()
    }


def main() -> None:
    parser = command(__doc__)
    parser.add_argument("--model", type=Path, default=_TARGET, metavar="DIR")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    torch.set_num_threads(2)
    torch.set_grad_enabled(False)
    long = [path for path in _TEXTS if path.name != "__init__.py"]
    every = long[:: max(1, len(long) // given.prompts)][: given.prompts]
    show(measure(given.model, [path.read_text("utf-8") for path in every]), given.json)


if __name__ == "__main__":
    main()
