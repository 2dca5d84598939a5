"""What reducing a draft saves in its calls, and what it costs in guesses.

    python -m benchmarks.reduced --draft DIR [--texts DATA.npz] [--arms int8,int4,32768,int8:32768]
    [--nodes 1,2,4,8,16,32] [--context 256] [--threads 1] [--repetitions 10] [--json FILE]

An arm is a quantization, a number of tokens of the head, or both. All stand beside the draft as it
is stored, in one run, and their calls take turns. A call ranks the best 8 tokens at every node.
With texts of a target (python -m benchmarks.agreement writes them), each arm reads them: the share
of positions whose token is among its best guesses, by temperature.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from benchmarks.agreement import CHUNK, Agreement, Prompt, load, read_text
from benchmarks.harness import command, cpu_decoder, heap, show, with_cpu
from inference.backends.eager import EagerModel
from inference.draft_tuning import TUNING
from inference.model.decoder import Decoder
from inference.sampling import SamplingParams
from inference.text import Tokenizer
from outrider.models.reduction import WHOLE, Reduction
from outrider.options.values import Quantization

LONGEST_TEXT = 1024


def read_arm(text: str) -> Reduction:
    """An arm of the command line, such as int8, 32768 or int8:32768."""
    parts = text.split(":")
    tokens = [int(part) for part in parts if part.isdigit()]
    named = [part for part in parts if not part.isdigit()]
    return Reduction(cast(Quantization, named[0]) if named else None, tokens[0] if tokens else None)


def arms_of(
    directory: Path, reductions: Sequence[Reduction], context: int
) -> dict[str, EagerModel]:
    """A model for each reduction, by its words. They share what none of them changes."""
    vocabulary = Tokenizer(directory).vocabulary
    whole = cpu_decoder(directory, LONGEST_TEXT, vocabulary, None)
    return {
        f"{whole.model.norm.weight.dtype}{one}": EagerModel(
            twin(whole, one, vocabulary), rows=1, capacity=LONGEST_TEXT + context, max_nodes=256
        )
        for one in reductions
    }


def twin(whole: Decoder, kept: Reduction, vocabulary: int) -> Decoder:
    """The decoder, reduced; the whole one stays as it is."""
    shared = {id(part): part for part in (*whole.parameters(), *whole.buffers())}
    copied = copy.deepcopy(whole, shared)
    copied.vocabulary = kept.vocabulary(vocabulary)
    return kept.apply(copied)


def hits(model: EagerModel, texts: Sequence[Agreement]) -> dict[str, float]:
    """Share of positions whose token is among the model's best guesses, by temperature."""
    shares = dict[str, float]()
    for temperature in sorted({text.temperature for text in texts}):
        taken = np.concatenate(
            [
                read_text(
                    model,
                    Prompt(text.prompt.tolist(), text.kind),
                    text.written.tolist(),
                    SamplingParams(temperature, seed=seed),
                ).taken
                for text, seed in zip(texts, seeds_of(texts), strict=True)
                if text.temperature == temperature
            ]
        )
        shares |= {
            f"T{temperature} top {best}": round(float((taken < best).mean()), 3)
            for best in (1, 4, TUNING.width)
        }
    return shares


def seeds_of(texts: Sequence[Agreement]) -> list[int]:
    """The seed of each text: benchmarks.agreement counts its prompts at every temperature."""
    seeds, seen = list[int](), dict[float, int]()
    for text in texts:
        seeds.append(seen.get(text.temperature, 0))
        seen[text.temperature] = seeds[-1] + 1
    return seeds


def main() -> None:
    parser = command(__doc__)
    parser.add_argument("--draft", type=Path, required=True, metavar="DIR")
    parser.add_argument("--texts", type=Path, metavar="DATA.npz")
    parser.add_argument("--arms", default="int8,int4,32768,16384,int8:32768,int8:16384")
    parser.add_argument("--nodes", default="1,2,4,8,16,32")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.set_grad_enabled(False)
    reductions = [WHOLE, *(read_arm(arm) for arm in given.arms.split(",") if arm)]
    models = arms_of(given.draft, reductions, given.context + CHUNK)
    figures: dict[str, Any] = {}
    if given.texts is not None:
        texts = load(given.texts)
        figures |= {f"{name}: hits": hits(model, texts) for name, model in models.items()}
    calls = {
        f"{name}, {nodes} nodes": partial(
            model.rank, [heap(nodes, given.context, SamplingParams())], TUNING.width
        )
        for nodes in map(int, given.nodes.split(","))
        for name, model in models.items()
    }
    if given.repetitions:
        figures |= with_cpu(calls, given.repetitions)
    show(figures, given.json)


if __name__ == "__main__":
    main()
