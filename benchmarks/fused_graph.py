"""Tokens a second of the fused graph beside the same models and the same chain in separate calls,
and beside the target alone.

    python -m compile --target cpu --fused --gamma 4 --out DIR --sampling sampled python -m
    benchmarks.fused_graph --artifact DIR [--temperature T,...] [--tokens N] [--runs N] [--json
    FILE]

One text at a time, in this process, on the CPU; arms take turns (A B C A B C), the first turn is
not counted. Ratios are medians of ratios within a turn, so that what else the machine does cancels
out. All arms must make the same texts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.harness import command, cpu_decoder, write_json
from inference.artifact import Manifest
from inference.backends import Model
from inference.backends.compiled import read_compiled
from inference.backends.eager import EagerModel
from inference.backends.fused import fused_part, load_fused
from inference.decode import Step, decode
from inference.draft_tuning import TUNING
from inference.drafters.round_proposer import RoundProposer
from inference.engine.colocated_drafter import ColocatedDrafter
from inference.engine.engine import Engine
from inference.engine.graph_rounds import GraphRounds
from inference.engine.graph_tree import Branching
from inference.engine.local_session import LocalSession
from inference.order import Decode, Pace
from inference.planner.acceptance_file import read_acceptance
from inference.planner.knowledge import Knowledge
from inference.sampling import SamplingParams
from inference.text import Tokenizer
from inference.times import DraftTimes, LatencyModel
from outrider.models.loading import EMBEDDED

PROMPTS = (
    "def main():\n    parser = argparse.",
    "class Reader:\n    def __init__(self",
    "import os\nimport sys\n\n\ndef ",
)


class Arm(NamedTuple):
    """An engine, whether it drafts itself, and the proposer that it waits for, if any."""

    name: str
    engine: Engine
    beside: bool = False
    proposer: RoundProposer | None = None

    def order(self, end: int) -> Decode:
        pace = Pace.GO_ON if self.proposer is None else Pace.WAIT
        return Decode(end, pace=pace, beside=self.beside)


@dataclass(frozen=True)
class Result:
    """An arm at one temperature. ratio: its tokens a second in those of the fused graph, in the
    same turn.
    """

    arm: str
    temperature: float
    tokens_per_second: float
    ratio: float
    acceptance_length: float


def arms_of(directory: Path, manifest: Manifest) -> list[Arm]:
    """The fused graph first. Two draft the same tree in calls of their own, and verify it eagerly
    or by the artefact's graphs; one lets the draft grow its trees freely beside the target.
    """
    fused, capacity = load_fused(directory, manifest), manifest.capacity
    target, draft = (_eager(EMBEDDED / which, manifest, capacity) for which in ("target", "draft"))
    same_tree = RoundProposer(draft, Branching(fused.shape), room=fused.shape.nodes - 1)
    growing = ColocatedDrafter(
        _eager(EMBEDDED / "draft", manifest, manifest.sequence_length + TUNING.room),
        _unknown,
        room=TUNING.room,
    )

    def compiled() -> Model:
        return load_fused(directory, manifest)

    return [
        Arm("fused graph", _engine(fused, manifest, graphs=GraphRounds(fused)), beside=True),
        Arm("separate calls, target compiled", _engine(compiled(), manifest), proposer=same_tree),
        Arm("separate calls, both eager", _engine(target, manifest), proposer=same_tree),
        Arm(
            "growing tree beside, target compiled",
            _engine(compiled(), manifest, host=growing),
            beside=True,
        ),
        Arm("target alone, compiled", _engine(compiled(), manifest)),
        Arm(
            "target alone, eager",
            _engine(_eager(EMBEDDED / "target", manifest, capacity), manifest),
        ),
    ]


def _unknown() -> Knowledge:
    """Return the knowledge of a draft whose calls were not measured yet."""
    return Knowledge(DraftTimes(), LatencyModel(), read_acceptance())


def _eager(directory: Path, manifest: Manifest, capacity: int) -> EagerModel:
    decoder = cpu_decoder(directory, manifest.sequence_length, manifest.vocabulary, torch.float32)
    return EagerModel(decoder, rows=1, capacity=capacity, max_nodes=64)


def _engine(
    model: Model,
    manifest: Manifest,
    *,
    host: ColocatedDrafter | None = None,
    graphs: GraphRounds | None = None,
) -> Engine:
    return Engine(
        model,
        sequence_length=manifest.sequence_length,
        max_tree_nodes=manifest.max_tree_nodes,
        vocabulary=manifest.vocabulary,
        host=host,
        graphs=graphs,
    )


class Turn(NamedTuple):
    """What an arm made in one turn."""

    tokens: list[int]
    seconds: float
    rounds: int


def take_turn(arm: Arm, prompts: Sequence[list[int]], params: SamplingParams, tokens: int) -> Turn:
    """All prompts once; the prompts' own passes are not timed."""
    made, seconds = list[Step](), 0.0
    for prompt in prompts:
        proposers = [] if arm.proposer is None else [arm.proposer]
        with closing(LocalSession(arm.engine)) as session:
            order = arm.order(len(prompt) + tokens)
            steps = (
                step for step in decode(prompt, params, session, order, proposers) if step.tokens
            )
            made.append(next(steps))
            start = time.perf_counter()
            made += steps
            seconds += time.perf_counter() - start
    return Turn([token for step in made for token in step.tokens], seconds, len(made))


def compare(
    arms: Sequence[Arm],
    prompts: Sequence[list[int]],
    params: SamplingParams,
    tokens: int,
    runs: int,
) -> list[Result]:
    """Every arm `runs` times in turns; raises RuntimeError when one makes another text."""
    turns = [[take_turn(arm, prompts, params, tokens) for arm in arms] for _ in range(runs + 1)][1:]
    texts = {tuple(turn.tokens) for each in turns for turn in each}
    if len(texts) > 1:
        raise RuntimeError(f"{len(texts)} different texts at temperature {params.temperature}")
    results = []
    for index, arm in enumerate(arms):
        speeds = [len(each[index].tokens) / each[index].seconds for each in turns]
        ratio = statistics.median(each[0].seconds / each[index].seconds for each in turns)
        length = len(turns[0][index].tokens) / turns[0][index].rounds
        results.append(
            Result(arm.name, params.temperature, statistics.median(speeds), ratio, length)
        )
    return results


def main() -> None:
    parser = command(__doc__)
    parser.add_argument(
        "--artifact", type=Path, required=True, metavar="DIR", help="of the embedded pair"
    )
    parser.add_argument("--temperature", default="0,0.7,1")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    torch.set_num_threads(1)
    manifest = read_compiled(given.artifact)
    arms, tokenizer = arms_of(given.artifact, manifest), Tokenizer(EMBEDDED / "target")
    print(
        f"{fused_part(manifest).shape}, {given.tokens} tokens after each of {len(PROMPTS)} "
        f"prompts, median of {given.runs} turns"
    )
    results: list[Result] = []
    for temperature in map(float, given.temperature.split(",")):
        params = SamplingParams(temperature, seed=1).on_the_wire()
        results += compare(
            arms, [tokenizer.encode(prompt) for prompt in PROMPTS], params, given.tokens, given.runs
        )
    print(f"{'T':>4}  {'arm':<38}{'tokens/s':>10}{'of fused':>10}{'tokens a round':>16}")
    for one in results:
        print(
            f"{one.temperature:>4.1f}  {one.arm:<38}{one.tokens_per_second:>10.1f}"
            f"{one.ratio:>10.2f}{one.acceptance_length:>16.2f}"
        )
    write_json(given.json, [asdict(one) for one in results])


if __name__ == "__main__":
    main()
