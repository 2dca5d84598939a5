"""Share of greedy choices that stay when a target's matrices are 8-bit floats.

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
from benchmarks.harness import Flags, Folder, JsonFile, cpu_decoder, run, show
from benchmarks.training.agreement import Prompt, write_texts
from inference.backends.eager import EagerModel
from inference.backends.sequence import ModelSequence
from inference.model.decoder import Decoder, Head
from inference.model.float8 import in_float8
from inference.sampling import SamplingParams
from inference.text import Tokenizer
from inference.tree import TokenTree
from outrider.models.directories import EMBEDDED

_CAPACITY, _PROMPT = 512, 128  # tokens
TEXT = 48  # tokens that agreement is counted on


def with_plain_head(rounded: Decoder, plain: Decoder) -> Decoder:
    """The rounded decoder with the plain one's head, in place."""
    table = plain.model.embed_tokens if plain.config.tied else plain.lm_head
    assert table is not None, "this rank has the whole vocabulary"
    rounded.lm_head = Head(1, 1, bias=False)
    rounded.lm_head.weight = table.get_parameter("weight")
    return rounded


def share(model: EagerModel, prompts: Sequence[Prompt], texts: Sequence[list[int]]) -> float:
    """Share of all texts' tokens that the model chooses, too, given those before."""
    same = list[bool]()
    for prompt, text in zip(prompts, texts, strict=True):
        sequence = ModelSequence(model, 0, SamplingParams())
        sequence.extend(prompt.ids[:-1])
        chosen = sequence.choose(TokenTree.chain([prompt.ids[-1], *text[:-1]]))
        same += (chosen == np.array(text)).tolist()
    return round(float(np.mean(same)), 3)


def measure(directory: Path, prompts: Sequence[str]) -> dict[str, object]:
    tokenizer = Tokenizer(directory)

    def decoder(dtype: torch.dtype) -> Decoder:
        return cpu_decoder(directory, _CAPACITY, tokenizer.vocabulary, dtype)

    def eager(decoder: Decoder) -> EagerModel:
        return EagerModel(decoder, rows=len(prompts), capacity=_CAPACITY, max_nodes=256)

    def texts(model: EagerModel) -> list[list[int]]:
        return write_texts(model, given, [SamplingParams()] * len(given), TEXT, frozenset())

    plain = decoder(torch.bfloat16)
    float32, bfloat16 = eager(decoder(torch.float32)), eager(plain)
    fp8 = eager(in_float8(plain))
    plain_head = eager(with_plain_head(in_float8(plain), plain))
    given = [Prompt(tokenizer.encode(prompt)[:_PROMPT], "code") for prompt in prompts]
    of_float32, of_bfloat16 = texts(float32), texts(bfloat16)
    return {
        "prompts": len(given),
        "tokens": sum(map(len, of_float32)),
        "bfloat16 agrees with float32": share(bfloat16, given, of_float32),
        "fp8 agrees with float32": share(fp8, given, of_float32),
        "fp8 agrees with bfloat16": share(fp8, given, of_bfloat16),
        "fp8 but for the head agrees with float32": share(plain_head, given, of_float32),
        "fp8 but for the head agrees with bfloat16": share(plain_head, given, of_bfloat16),
    }


class Options(Flags):
    model: Folder = EMBEDDED / "target"
    prompts: int = 12
    threads: int = 2
    json_file: JsonFile = None


def main(given: Options) -> None:
    torch.set_num_threads(given.threads)
    torch.set_grad_enabled(False)
    files = sorted(Path(inference.__file__).parent.glob("*/*.py"))
    long = [path for path in files if path.name != "__init__.py"]
    every = long[:: max(1, len(long) // given.prompts)][: given.prompts]
    show(measure(given.model, [path.read_text("utf-8") for path in every]), given.json_file)


if __name__ == "__main__":
    run(Options, main)
