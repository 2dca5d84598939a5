"""A target's substitute beside a smaller draft: how far each runs ahead, and what its calls take.

    python -m benchmarks.substitutes --target DIR --draft DIR [--texts 2] [--new 48]
    python -m benchmarks.substitutes --target DIR --memory

The target writes texts at temperature 0, 0.7 and 1; each draft reads them under the same noise.
`ahead` is the acceptance length of a chain of 8 guesses, the target's own token included. Calls
take turns. With --memory, the target makes forwards in a process of its own, once resident and once
with its layers read from its files: seconds of a forward, and the memory of the process by kind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.agreement import (
    TEMPERATURES,
    Prompt,
    held_out_prompts,
    read_text,
    write_texts,
)
from benchmarks.harness import command, heap, show, with_cpu
from inference.backends.eager import EagerModel
from inference.draft_tuning import TUNING
from inference.model.checkpoint import load_decoder
from inference.model.config import read_config
from inference.model.decoder import Decoder
from inference.model.layer_offload import load_offloaded
from inference.model.substitute import load_substitute
from inference.sampling import SamplingParams
from inference.text import Tokenizer

GUESSES = 8
CONTEXT, LENGTH = 256, 1024
CPU = torch.device("cpu")


class Text(NamedTuple):
    """What the target wrote after a prompt."""

    prompt: Prompt
    written: list[int]
    params: SamplingParams


def loaded(
    load: Callable[..., Decoder], directory: Path, vocabulary: int, rows: int = 1
) -> EagerModel:
    """A model on the CPU in the precision of its files."""
    decoder = load(directory, positions=LENGTH, vocabulary=vocabulary, dtype=None, device=CPU)
    return EagerModel(decoder, rows=rows, capacity=LENGTH, max_nodes=256)


def written(target: Path, tokenizer: Tokenizer, count: int, new: int) -> list[Text]:
    """What the target writes after so many prompts at each temperature."""
    prompts = held_out_prompts(tokenizer, count)
    jobs = [
        (prompt, SamplingParams(temperature, seed=seed))
        for temperature in TEMPERATURES
        for seed, prompt in enumerate(prompts)
    ]
    model = loaded(load_decoder, target, tokenizer.vocabulary, len(jobs))
    asked, params = [job[0] for job in jobs], [job[1] for job in jobs]
    texts = write_texts(model, asked, params, new, read_config(target).stop_ids)
    return [Text(*one) for one in zip(asked, texts, params, strict=True)]


def ahead(taken: Sequence[int]) -> float:
    """Tokens a forward with a chain of GUESSES best guesses.

    taken: rank of the target's token among the draft's, position by position
    """
    forwards, at = 0, 0
    while at < len(taken):
        wrong = next((i for i, rank in enumerate(taken[at : at + GUESSES]) if rank), GUESSES)
        forwards, at = forwards + 1, at + wrong + 1
    return len(taken) / forwards


def agreement(draft: EagerModel, texts: Sequence[Text]) -> dict[str, float]:
    """A draft's acceptance length, and share of first guesses that are right, by temperature."""
    figures = dict[str, float]()
    for temperature in TEMPERATURES:
        ranks = [
            read_text(draft, *text).taken.tolist()
            for text in texts
            if text.params.temperature == temperature
        ]
        figures |= {
            f"T{temperature} ahead": round(float(np.mean([ahead(one) for one in ranks])), 2),
            f"T{temperature} right": round(float(np.mean(np.concatenate(ranks) == 0)), 3),
        }
    return figures


def memory(target: Path, offload: bool) -> dict[str, float]:
    """Seconds of a forward of one node, and megabytes of this process afterwards."""
    torch.set_grad_enabled(False)
    load = partial(load_offloaded, offload="disk") if offload else load_decoder
    model, seconds = loaded(load, target, 1000), list[float]()
    for _ in range(5):
        began = time.perf_counter()
        model.choose([heap(1, CONTEXT, SamplingParams())])
        seconds.append(time.perf_counter() - began)
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    kept = dict(line.split(":\t", 1) for line in status if line.startswith(("Rss", "VmHWM")))
    sizes = {name: round(int(text.split()[0]) / 1e3) for name, text in kept.items()}
    return {"forward_s": round(median(seconds), 3), **sizes}


def main() -> None:
    parser = command(__doc__)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--texts", type=int, default=2)
    parser.add_argument("--new", type=int, default=48)
    parser.add_argument("--repetitions", type=int, default=8)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    if given.memory:
        with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            ways = {"resident": False, "layers from disk": True}
            sizes = {name: pool.apply(memory, (given.target, way)) for name, way in ways.items()}
        show(sizes, given.json)
        return
    torch.set_grad_enabled(False)
    tokenizer = Tokenizer(given.target)
    texts = written(given.target, tokenizer, given.texts, given.new)
    print(f"{len(texts)} texts written", flush=True)
    drafts = {
        "draft": loaded(load_decoder, given.draft, tokenizer.vocabulary),
        "substitute": loaded(load_substitute, given.target, tokenizer.vocabulary),
    }
    figures: dict[str, object] = {name: agreement(one, texts) for name, one in drafts.items()}
    show(figures, None)
    calls = {
        f"{name}, {nodes} nodes": partial(
            model.rank, [heap(nodes, CONTEXT, SamplingParams())], TUNING.width
        )
        for nodes in (1, 4, 8)
        for name, model in drafts.items()
    }
    show(figures | with_cpu(calls, given.repetitions), given.json)


if __name__ == "__main__":
    main()
