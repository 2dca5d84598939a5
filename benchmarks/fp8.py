"""How many greedy choices stay when a target's matrices are 8-bit floats.

    python -m benchmarks.fp8 [--model DIR] [--prompts 12] [--threads 2] [--json FILE]

Run on the CPU is the emulation of what `python -m compile --dtype fp8` builds: matrices and head in
e4m3 up to 240 with a scale an output, states in bfloat16. The share is of the tokens of a model's
own greedy texts (48 a prompt) that another one chooses, too, given those before. Prompts are the
first 128 tokens of this project's own files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

import inference
from benchmarks.harness import command, cpu_decoder, show
from inference.backends import Model, Segment
from inference.backends.eager import EagerModel
from inference.model.decoder import Decoder, Head
from inference.model.float8 import in_float8
from inference.sampling import SamplingParams
from inference.text import Tokenizer
from inference.tree import TokenTree

_TARGET = Path(inference.__file__).parent / "data" / "target"
_CAPACITY, _PROMPT = 512, 128  # tokens
TEXT, CALL = 48, 16  # tokens that agreement is counted on, and fed at once


def chain(tokens: Sequence[int], start: int) -> Segment:
    """Tokens from position `start` on, in slots of the same numbers, chosen at all."""
    tree, every = TokenTree.chain(list(tokens)), np.arange(len(tokens), dtype=np.int32)
    return Segment(
        0,
        tree.tokens,
        start + every,
        start + every,
        np.ones((1, start), dtype=np.bool_),
        tree.mask,
        every,
        SamplingParams(),
    )


def choices(model: Model, tokens: Sequence[int], start: int = 0) -> list[int]:
    """What is chosen after each token, fed CALL tokens a call."""
    calls = [chain(tokens[at : at + CALL], start + at) for at in range(0, len(tokens), CALL)]
    return [int(token) for call in calls for token in model.choose([call])[0]]


def own_text(model: Model, prompt: list[int]) -> list[int]:
    """TEXT tokens of greedy decoding, one token a call."""
    made = choices(model, prompt)[-1:]
    while len(made) < TEXT:
        made += choices(model, made[-1:], len(prompt) + len(made) - 1)
    return made


def agreement(model: Model, prompt: list[int], text: list[int]) -> float:
    """Share of the text's tokens that the model chooses, too, given those before."""
    chosen = choices(model, [*prompt, *text])[len(prompt) - 1 : -1]
    return round(float(np.mean(np.array(chosen) == np.array(text))), 3)


def with_plain_head(rounded: Decoder, plain: Decoder) -> Decoder:
    """The rounded decoder with the plain one's head, in place."""
    table = plain.model.embed_tokens if plain.config.tied else plain.lm_head
    assert table is not None, "this rank has the whole vocabulary"
    rounded.lm_head = Head(1, 1, bias=False)
    rounded.lm_head.weight = table.get_parameter("weight")
    return rounded


def share(model: EagerModel, prompts: Sequence[list[int]], texts: Sequence[list[int]]) -> float:
    """The share of all texts' tokens that the model chooses, too."""
    shares = [agreement(model, *pair) for pair in zip(prompts, texts, strict=True)]
    return round(float(np.mean(shares)), 3)


def measure(directory: Path, prompts: Sequence[str]) -> dict[str, object]:
    tokenizer = Tokenizer(directory)

    def decoder(dtype: torch.dtype) -> Decoder:
        return cpu_decoder(directory, _CAPACITY, tokenizer.vocabulary, dtype)

    def eager(decoder: Decoder) -> EagerModel:
        return EagerModel(decoder, rows=1, capacity=_CAPACITY, max_nodes=256)

    plain = decoder(torch.bfloat16)
    float32, bfloat16 = eager(decoder(torch.float32)), eager(plain)
    fp8 = eager(in_float8(plain))
    plain_head = eager(with_plain_head(in_float8(plain), plain))
    given = [tokenizer.encode(prompt)[:_PROMPT] for prompt in prompts]
    of_float32 = [own_text(float32, prompt) for prompt in given]
    of_bfloat16 = [own_text(bfloat16, prompt) for prompt in given]
    return {
        "prompts": len(given),
        "tokens": sum(map(len, of_float32)),
        "bfloat16 agrees with float32": share(bfloat16, given, of_float32),
        "fp8 agrees with float32": share(fp8, given, of_float32),
        "fp8 agrees with bfloat16": share(fp8, given, of_bfloat16),
        "fp8 but for the head agrees with float32": share(plain_head, given, of_float32),
        "fp8 but for the head agrees with bfloat16": share(plain_head, given, of_bfloat16),
    }


def main() -> None:
    parser = command(__doc__)
    parser.add_argument("--model", type=Path, default=_TARGET, metavar="DIR")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.set_grad_enabled(False)
    files = sorted(Path(inference.__file__).parent.glob("*/*.py"))
    long = [path for path in files if path.name != "__init__.py"]
    every = long[:: max(1, len(long) // given.prompts)][: given.prompts]
    show(measure(given.model, [path.read_text("utf-8") for path in every]), given.json)


if __name__ == "__main__":
    main()
