"""What choosing costs beside the forward: a whole vocabulary, sixteen nodes, several depths.

    python -m benchmarks.choice [--vocabulary 151936] [--nodes 16] [--depths 1,4,8] [--threads 2]

Logits are drawn with a spread as language models have it (normal, standard deviation 3, a few
tokens far above).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from benchmarks.harness import command, medians
from inference.model.sampler import Sampling, choose_greedy, choose_open, choose_truncated
from inference.sampling import SamplingParams


def main() -> None:
    parser = command(__doc__)
    parser.add_argument("--vocabulary", type=int, default=151936)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--depths", default="1,4,8")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=9)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    logits = (
        torch.randn(1, given.nodes, given.vocabulary, generator=torch.Generator().manual_seed(0))
        * 3
    )
    logits[..., :40] += 12
    open_ = Sampling.of([SamplingParams(1.0, seed=5)], torch.device("cpu"))
    nucleus = Sampling.of([SamplingParams(1.0, top_p=0.9, seed=5)], torch.device("cpu"))
    print(f"{given.nodes} nodes, {given.vocabulary} tokens; median ms")
    for depth in (int(part) for part in given.depths.split(",")):
        positions = (torch.arange(given.nodes, dtype=torch.int32) % depth)[None] + 100
        calls: dict[str, Callable[[], object]] = {
            "greedy": partial(choose_greedy, logits),
            "top-p": partial(choose_truncated, logits, nucleus, positions),
            "all tokens": partial(choose_open, logits, open_, positions, depth),
        }
        print(f"{depth} distinct positions: {medians(calls, given.repetitions)}")


if __name__ == "__main__":
    main()
