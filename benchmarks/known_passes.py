"""Passes that others measured on Neuron devices, beside what compile/ops says they take.

    python -m benchmarks.known_passes [--fit]

A pass of theirs is one plain forward: bfloat16, one token a row, the highest score. Two constants
of compile/ops/engines.py were fitted to these passes, the seconds of a collective and those of the
host; `--fit` repeats that search. Exit status 1 if a prediction is off by more than 15 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.harness import Flags, run
from compile.ops import pass_time
from compile.ops.engines import FITTED, Fitted, rates_of
from compile.ops.pass_time import PassTime, PassWork, work_of
from compile.ops.recording import record

MOST_ERROR = 0.15
"""Largest error of a prediction, as a part of what was measured."""


class Sizes(NamedTuple):
    """Sizes of a model of the Llama family."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int


LLAMA_3_8B = Sizes(32, 4096, 32, 8, 14_336, 128_256)
LLAMA_3_70B = Sizes(80, 8192, 64, 8, 28_672, 128_256)
LLAMA_2_7B = Sizes(32, 4096, 32, 32, 11_008, 32_000)


@dataclass(frozen=True)
class Known:
    """A measured pass."""

    what: str
    source: str
    sizes: Sizes
    target: str
    ranks: int
    rows: int
    slots: int  # that its graph reads, whatever the context is
    milliseconds: float


_AWS = "aws-neuron-sdk, about-neuron/benchmarks/trn1/latency_data_decoder.csv"
_HF = "optimum-neuron, benchmark/vllm/data-parallel/llama3.1-8b, one synchronous user"
KNOWN = (
    Known("8B, trn1.2xlarge", "choral-spec", LLAMA_3_8B, "trn1", 2, 1, 2048, 36.71),
    Known("70B, 32 cores", _AWS, LLAMA_3_70B, "trn1", 32, 1, 1152, 24.48),
    Known("70B, 32 cores, 4096 slots", _AWS, LLAMA_3_70B, "trn1", 32, 1, 4096, 26.2),
    Known("8B, 8 cores, 32 rows", _HF, LLAMA_3_8B, "trn1", 8, 32, 4096, 26.35),
    Known("7B, 32 cores, 8192 slots", _AWS, LLAMA_2_7B, "trn1", 32, 1, 8192, 6.70),
)


class PlainPass(nn.Module):
    """One rank's share of a plain forward of one token a row. `keys` and `values`: [layers, rows,
    kv heads, slots, head dim].
    """

    keys: Tensor
    values: Tensor

    def __init__(self, known: Known, layers: int) -> None:
        super().__init__()
        sizes, ranks = known.sizes, known.ranks
        self.dim = sizes.hidden // sizes.heads
        kv_heads = max(1, sizes.kv_heads // ranks)
        query = sizes.hidden // ranks
        shapes = {
            "norms": (2, sizes.hidden),
            "q": (query, sizes.hidden),
            "kv": (2 * kv_heads * self.dim, sizes.hidden),
            "o": (sizes.hidden, query),
            "gate": (sizes.inner // ranks, sizes.hidden),
            "up": (sizes.inner // ranks, sizes.hidden),
            "down": (sizes.hidden, sizes.inner // ranks),
        }
        self.layers = nn.ModuleList(
            nn.ParameterDict({name: nn.Parameter(torch.empty(s)) for name, s in shapes.items()})
            for _ in range(layers)
        )
        self.embedding = nn.Parameter(torch.empty(sizes.vocabulary, query))
        self.head = nn.Parameter(torch.empty(sizes.vocabulary // ranks, sizes.hidden))
        self.ranks = ranks
        cache = (layers, known.rows, kv_heads, known.slots, self.dim)
        self.register_buffer("keys", torch.empty(cache))
        self.register_buffer("values", torch.empty(cache))

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:  # [B, 1], [B, 1, 1, S] -> [B]
        x = torch.ops.outrider.all_gather(F.embedding(tokens, self.embedding), self.ranks)
        for index, weights in enumerate(self.layers):
            assert isinstance(weights, nn.ParameterDict)
            x = x + self._attended(self._normed(x, weights["norms"][0]), weights, index, mask)
            normed = self._normed(x, weights["norms"][1])
            gated = F.silu(F.linear(normed, weights["gate"])) * F.linear(normed, weights["up"])
            x = x + _summed(F.linear(gated, weights["down"]))
        logits = F.linear(x[:, 0], self.head).float()
        best, places = logits.max(-1)
        everywhere = torch.ops.outrider.all_gather(best[:, None], self.ranks)
        chosen: Tensor = everywhere.argmax(-1) + places
        return chosen

    def _attended(
        self, x: Tensor, weights: nn.ParameterDict, index: int, mask: Tensor
    ) -> Tensor:  # [B, 1, hidden] -> [B, 1, hidden]
        rows, keys, values = len(x), self.keys[index], self.values[index]
        q = F.linear(x, weights["q"]).view(rows, keys.shape[1], -1, self.dim)
        F.linear(x, weights["kv"])  # the new key and value, whose writing is left out
        scores = (q @ keys.transpose(2, 3)).float() * self.dim**-0.5
        scores = torch.where(mask, scores, -1e30)
        chances = torch.exp(scores - scores.amax(-1, keepdim=True))
        chances = chances / chances.sum(-1, keepdim=True)
        mixed = (chances.to(x.dtype) @ values).view(rows, 1, -1)
        return _summed(F.linear(mixed, weights["o"]))

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt((wide * wide).mean(-1, keepdim=True))
        return weight * (wide * scale).to(x.dtype)


def _summed(x: Tensor) -> Tensor:
    summed: Tensor = torch.ops.outrider.all_reduce(x)
    return summed


def known_work(known: Known) -> PassWork:
    """The work of a known pass on one rank."""
    one, two = (_recorded(known, layers) for layers in (1, 2))
    return one.plus(two.plus(one, -1), known.sizes.layers - 1)


def predicted(known: Known) -> PassTime:
    return known_work(known).milliseconds(rates_of(known.target))


def _recorded(known: Known, layers: int) -> PassWork:
    with torch.device("meta"):
        graph = PlainPass(known, layers).bfloat16()
        inputs = {
            "tokens": torch.zeros(known.rows, 1, dtype=torch.int32),
            "mask": torch.ones(known.rows, 1, 1, known.slots, dtype=torch.bool),
        }
    return work_of(record(graph, inputs))


def fit() -> Iterator[tuple[float, Fitted]]:
    """Constants on a grid, with the largest relative error that each makes in a known pass."""
    works = [(known, known_work(known)) for known in KNOWN]
    for wait, host in product(range(5, 41, 5), range(20, 81, 5)):
        fitted = Fitted(all_reduce=wait * 1e-6, host=host * 1e-4)
        with patch.object(pass_time, "FITTED", fitted):
            times = [(work.milliseconds(rates_of(known.target)), known) for known, work in works]
        yield max(abs(math.log(time.total / known.milliseconds)) for time, known in times), fitted


class Options(Flags):
    fit: bool = False
    """search for the two fitted constants"""


def main(given: Options) -> int:
    if given.fit:
        for error, fitted in sorted(fit(), key=lambda found: found[0])[:12]:
            print(f"{error:.1%}  {fitted}")
        return 0
    print(f"{FITTED}")
    worst = 0.0
    for known in KNOWN:
        time = predicted(known)
        off = time.total / known.milliseconds - 1
        worst = max(worst, abs(off))
        parts = ", ".join(f"{cost} {ms:.1f}" for cost, ms in time.costs.items() if ms >= 0.05)
        print(
            f"{known.what:<30}{known.milliseconds:>7.1f} measured{time.total:>7.1f} predicted "
            f"{off:>+7.1%}   {parts}"
        )
    return int(worst > MOST_ERROR)


if __name__ == "__main__":
    run(Options, main)
