"""Which way of 8-bit matrices is fast on a CPU and keeps a node's numbers independent of its
neighbours.

    python -m benchmarks.int8 --model DIR [--nodes 1,8,16,32,64] [--context 256] [--threads 2]
    [--json FILE]

Compared with eager bfloat16: OpenVINO (what --dtype int8 builds), and torch with one scale a node
and exact integer sums (what --draft_quantization int8 takes). Times are those of
benchmarks/compiled.py. Agreement: the share of a greedy text of 48 tokens that is chosen again when
it is fed 16 tokens a call; with itself it measures what the size of calls does to choices, with
float32 what the integers do besides.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.compiled import compiled_model
from benchmarks.harness import command, cpu_decoder, heap, show, with_cpu
from compile.spec import least_nodes, verify_bucket
from inference.backends import Model, Segment
from inference.backends.compiled import CompiledModel
from inference.backends.eager import EagerModel
from inference.model.quantized import quantize
from inference.sampling import SamplingParams
from inference.text import Tokenizer
from inference.tree import TokenTree

TEXT, CALL = 48, 16  # tokens that agreement is counted on, and fed at once
PROMPT = (
    '"""Read a file of numbers and print their mean."""\n\nimport sys\n\n\ndef '
    "read_numbers(path):\n"
)


def eager(
    directory: Path, dtype: torch.dtype, capacity: int, *, integers: bool = False
) -> EagerModel:
    vocabulary = Tokenizer(directory).vocabulary
    decoder = cpu_decoder(directory, capacity, vocabulary, dtype)
    return EagerModel(
        quantize(decoder, "int8") if integers else decoder, rows=1, capacity=capacity, max_nodes=256
    )


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


def root_changes(
    model: EagerModel | CompiledModel, nodes: int, context: int, vocabulary: int
) -> bool:
    """Whether any bit of the root's new keys depends on the tokens beside it, over 4 draws."""
    rng, seen = np.random.default_rng(0), []
    for _ in range(4):
        tokens = np.array([0, *rng.integers(0, vocabulary, nodes - 1)], dtype=np.int32)
        model.choose([heap(nodes, context, SamplingParams())._replace(tokens=tokens)])
        seen.append(torch.stack([keys[0, context] for keys in model.cache.keys]))
    return any(not torch.equal(seen[0], other) for other in seen[1:])


def measure(directory: Path, nodes: list[int], context: int, repetitions: int) -> dict[str, Any]:
    slots, most, vocabulary = -(-context // 64) * 64, max(nodes), Tokenizer(directory).vocabulary
    capacity = slots + 2 * most
    sizes = sorted({max(size, least_nodes("int8")) for size in nodes})
    buckets = [
        *(verify_bucket(1, size, slots, capacity, sampled=False) for size in sizes),
        verify_bucket(1, most, capacity, capacity, sampled=False),
    ]
    with tempfile.TemporaryDirectory() as scratch:
        served, seconds = compiled_model(directory, "int8", capacity, tuple(buckets), Path(scratch))
    models: dict[str, EagerModel | CompiledModel] = {
        "eager bfloat16": eager(directory, torch.bfloat16, capacity),
        "OpenVINO int8": served,
        "torch int8, a scale a node": eager(directory, torch.float32, capacity, integers=True),
    }
    figures: dict[str, Any] = {"OpenVINO build_seconds": round(seconds, 1)}
    prompt = Tokenizer(directory).encode(PROMPT)
    text = own_text(eager(directory, torch.float32, capacity), prompt)
    for name, model in models.items():
        figures[name] = {
            "agrees with float32": agreement(model, prompt, text),
            "agrees with itself": agreement(model, prompt, own_text(model, prompt)),
            "root depends on others": root_changes(model, most, context, vocabulary),
        }
    calls = {
        f"{name} {size}": partial(model.choose, [heap(size, context, SamplingParams())])
        for size in nodes
        for name, model in models.items()
    }
    return figures | with_cpu(calls, repetitions)


def main() -> None:
    parser = command(__doc__)
    parser.add_argument("--model", type=Path, required=True, metavar="DIR")
    parser.add_argument("--nodes", default="1,8,16,32,64")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.set_grad_enabled(False)
    figures = measure(
        given.model,
        [int(part) for part in given.nodes.split(",")],
        given.context,
        given.repetitions,
    )
    show(figures, given.json)


if __name__ == "__main__":
    main()
