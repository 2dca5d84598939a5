"""What a head beside the embedded target brings, next to what the embedded draft brings there.

    python -m benchmarks.train_head --out HEAD_DIR
    python -m benchmarks.draft_beside --head HEAD_DIR

Both draft for the same texts: beginnings of files that neither was trained on. On the clock of this
benchmark a forward takes 10 ms and a call of either draft 1 ms, so only the last column depends on
the machine: milliseconds of a call that ranks 8 candidates, measured in turns. "equal" counts the
texts that are the target's own (near-ties in float32 aside, all are).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from inference.backends.led_sequence import LedSequence, RowFeatures
from inference.backends.shared_sequence import TargetRow
from inference.engine.target_rows import led_by_row

from benchmarks.corpus import checked_listing, read_texts
from benchmarks.harness import command, cpu_decoder, medians, table_lines
from inference.backends import Model, Ranked, Segment
from inference.backends.eager import EagerModel
from inference.backends.eagle import EagleModel
from inference.backends.sequence import ModelSequence
from inference.draft_tuning import TUNING
from inference.engine.colocated_drafter import ColocatedDrafter
from inference.engine.engine import Engine
from inference.engine.session import Session
from inference.model.decoder import Decoder
from inference.model.eagle import load_head
from inference.order import Decode, End
from inference.planner.acceptance_file import read_acceptance
from inference.planner.knowledge import Knowledge
from inference.sampling import SamplingParams
from inference.text import Tokenizer
from inference.times import DraftTimes, LatencyModel
from inference.tree import IntArray, TokenTree
from outrider.models.loading import EMBEDDED

LENGTH, NODES, CHUNK = 1024, 64, 256
FORWARD, CALL = 0.010, 0.001
TEMPERATURES = (0.0, 0.7, 1.0)


class Clock:
    """Seconds that pass only when a model is called. calls: of the draft, to rank candidates."""

    def __init__(self) -> None:
        self.now, self.calls = 0.0, 0

    def __call__(self) -> float:
        return self.now


class Target(EagerModel):
    """A target whose forwards take 10 ms."""

    clock: Clock

    def choose(self, segments: Sequence[Segment]) -> list[IntArray]:
        self.clock.now += FORWARD
        return super().choose(segments)


class Draft(EagerModel):
    """A draft whose calls take 1 ms."""

    clock: Clock

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        self.clock.now, self.clock.calls = self.clock.now + CALL, self.clock.calls + 1
        return super().rank(segments, k)


class Head(EagleModel):
    """A head whose calls take 1 ms, those that feed it a prompt included."""

    clock: Clock

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        self.clock.now, self.clock.calls = self.clock.now + CALL, self.clock.calls + (k > 1)
        return super().rank(segments, k)


class Beside(NamedTuple):
    """An engine with a draft beside its target, and their clock."""

    engine: Engine
    draft: Model
    clock: Clock


def beside(target: Decoder, draft: Decoder | Path) -> Beside:
    """draft: its decoder, or the directory of a head"""
    model = Target(target, rows=1, capacity=LENGTH + NODES, max_nodes=CHUNK)
    times, clock = {(1, nodes): FORWARD for nodes in (1, 2, 4, 8, 16, 32, 64)}, Clock()
    made: Draft | Head

    def know() -> Knowledge:
        return Knowledge(DraftTimes({1: CALL}), LatencyModel(times), read_acceptance())

    if isinstance(draft, Path):
        head = load_head(draft, target, LENGTH)
        model.keep_features(head.config.kept)
        made = Head(head, rows=1, capacity=LENGTH + TUNING.room, max_nodes=CHUNK)
        host = ColocatedDrafter(
            made, know, room=TUNING.room, sequence=partial(led_by_row, model), clock=clock
        )
    else:
        made = Draft(draft, rows=1, capacity=LENGTH + TUNING.room, max_nodes=CHUNK)
        host = ColocatedDrafter(made, know, room=TUNING.room, clock=clock)
    model.clock = made.clock = clock
    engine = Engine(
        model,
        sequence_length=LENGTH,
        max_tree_nodes=NODES,
        vocabulary=target.vocabulary,
        times=LatencyModel(times, measured=True),
        host=host,
        clock=clock,
    )
    return Beside(engine, made, clock)


def made_by(
    engine: Engine, prompt: Sequence[int], params: SamplingParams, tokens: int, *, drafted: bool
) -> Session:
    """A session that has made so many tokens and is closed."""
    session, opening = engine.open(prompt, params)
    engine.finish(opening)
    engine.decode(session, Decode(len(prompt) + tokens, credit=512, beside=drafted))
    while session.end is End.NOT:
        engine.step()
        engine.acknowledge(session, session.length)
    engine.close(session)
    return session


def cells(
    pair: Beside, prompts: Sequence[Sequence[int]], params: SamplingParams, tokens: int
) -> list[str]:
    """What the draft brought over all texts, as a row of the table."""
    before, equal = pair.clock.calls, 0
    spent = []
    for prompt in prompts:
        session = made_by(pair.engine, prompt, params, tokens, drafted=True)
        own = made_by(pair.engine, prompt, params, tokens, drafted=False)
        equal += session.tokens == own.tokens
        spent.append(session.spent)
    forwards, lone = sum(one.forwards for one in spent), sum(one.lone for one in spent)
    all_tokens = tokens * len(prompts)
    return [
        f"{all_tokens / forwards:.2f}",
        f"{(all_tokens - lone) / max(forwards - lone, 1):.2f}",
        f"{sum(one.nodes for one in spent) / forwards:.1f}",
        f"{(pair.clock.calls - before) / all_tokens:.2f}",
        f"{equal} of {len(prompts)}",
    ]


def ranking(pair: Beside, prompt: Sequence[int]) -> ModelSequence:
    """A row of the draft with a prompt, on which calls can be timed."""
    there = ModelSequence(pair.engine.model, 0, SamplingParams())
    there.extend(prompt[:-1])
    here = ModelSequence(pair.draft, 0, SamplingParams())
    if isinstance(pair.draft, Head):
        assert isinstance(pair.engine.model, Target)
        features = RowFeatures(pair.engine.model, lambda: TargetRow(0, there.slots))
        here = LedSequence(pair.draft, 0, SamplingParams(), features=features)
    here.extend(prompt[:-1])
    return here


def call_ms(pairs: dict[str, Beside], prompt: Sequence[int], repetitions: int) -> dict[str, float]:
    """Median milliseconds of ranking 8 children of a ranked root, in turns."""
    parents = np.array([-1, *[0] * TUNING.width], dtype=np.int32)
    tree = TokenTree(np.array([prompt[-1], *range(2, 2 + TUNING.width)], dtype=np.int32), parents)
    calls = {}
    for name, pair in pairs.items():
        row = ranking(pair, prompt)
        row.rank(tree, [0], TUNING.width)
        segment = row.prepare_nodes(tree, range(1, 1 + TUNING.width))
        calls[name] = lambda model=pair.draft, segment=segment: model.rank([segment], TUNING.width)
    return medians(calls, repetitions)


def main() -> None:
    parser = command(__doc__)
    parser.add_argument("--head", type=Path, required=True, help="folder of the head")
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=64, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=96, help="tokens of each text")
    options: argparse.Namespace = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = Tokenizer(EMBEDDED / "target")
    held_out = read_texts(checked_listing(EMBEDDED / "training_files.json", True), "held-out")
    ids = [tokenizer.encode(text) for text in held_out if text]
    prompts = [text[: options.prompt] for text in ids if len(text) > 400][: options.texts]
    target, draft = (
        cpu_decoder(EMBEDDED / name, LENGTH, tokenizer.vocabulary, torch.float32)
        for name in ("target", "draft")
    )
    names: dict[str, Decoder | Path] = {"embedded draft": draft, "head": options.head}
    timed = {name: beside(target, one) for name, one in names.items()}
    took = call_ms(timed, prompts[0], 40)
    rows = []
    for temperature in TEMPERATURES:
        for name, one in names.items():
            params = SamplingParams(temperature, seed=7)
            figures = cells(beside(target, one), prompts, params, options.tokens)
            rows.append([str(temperature), name, *figures, f"{took[name]:.2f}"])
    heads = [
        "T", "draft", "tokens a forward", "with candidates", "nodes a forward", "calls a token",
        "equal", "ms a call",
    ]  # fmt: skip
    print(*table_lines(heads, rows), sep="\n")


if __name__ == "__main__":
    main()
