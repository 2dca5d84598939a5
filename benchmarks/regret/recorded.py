"""The study on what real models said: real prompts, a real draft and real copies, on a virtual
clock.

    python -m benchmarks.regret.recorded DRAFT --texts FILE --prompts DIR [--each 20]
    [--tokens 64] [--round_trip 20] [--arms hybrid,suffix] [--draft_quantization int8]

FILE holds the greedy texts of a target after these prompts (benchmarks/regret/models.py --texts).
The engine, the loop, the proposers and the draft's guesses are real. The target repeats what was
recorded, and times are those of the study's profiles: Llama-3.1-8B on trn1.2xlarge and a computed
laptop draft. So a pass of 16 nodes costs about what one node costs, as on Neuron devices and unlike
on a CPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np

from benchmarks.harness import command, table_lines
from benchmarks.regret.arms import Arm
from benchmarks.regret.dial import Agreement, Text
from benchmarks.regret.models import Asked, KeptTexts, ask, chosen_arms, text_key
from benchmarks.regret.models_report import PlayedTruly, by_kind
from benchmarks.regret.stage import SEQUENCE_LENGTH, stage_of
from benchmarks.regret.study import Cell, Reading, Result, checked
from inference.backends import Model, Ranked, Segment
from inference.command import run_command
from inference.errors import InvalidRequest
from inference.sampling import SamplingParams
from inference.tree import IntArray
from outrider.draft_methods import find_draft
from outrider.models.loading import PREFILL_NODES
from outrider.models.sequence_length import Capacity
from outrider.options.roles import DraftRole
from outrider.options.values import Quantization

_ROOM = 4096
"""Slots of the draft beside the text."""


class RecordedTarget:
    """A Model with one row that says a recorded text, whatever stands before.

    After a node of position p it says the token of position p + 1. That is the target's greedy
    choice wherever the path up to the node is the text's own, and no other choice is ever used.
    """

    rows, capacity, max_nodes, copies_rows = 1, SEQUENCE_LENGTH + _ROOM, 2048, False

    def __init__(self) -> None:
        self._ids: IntArray = np.zeros(0, dtype=np.int32)

    def record(self, text: Text) -> None:
        """From now on this text is said. Behind its end stands token 0."""
        end = np.zeros(self.capacity, dtype=np.int32)
        self._ids = np.concatenate([np.array([*text.prompt, *text.tokens], dtype=np.int32), end])

    def choose(self, segments: Sequence[Segment]) -> list[IntArray]:
        return [self._ids[one.positions[one.pick] + 1] for one in segments]

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        raise NotImplementedError("a recorded target ranks nothing")

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        return rows, nodes

    def copy_row(self, source: int, target: int, slots: int) -> None:
        raise NotImplementedError("a recorded target has one row")


def recorded_texts(asked: Sequence[Asked], tokens: int, kept: KeptTexts) -> list[Text]:
    """The recorded greedy texts. Raises InvalidRequest where one is missing."""
    texts = []
    for index, (_, ids) in enumerate(asked):
        params = SamplingParams(0.0, seed=11 + index).on_the_wire()
        said = kept.get(text_key(0.0, tokens, index, ids))
        if said is None:
            raise InvalidRequest(
                f"text {index} of {tokens} tokens is not among the recorded ones: "
                "benchmarks/regret/models.py --texts records them"
            )
        texts.append(Text(ids, params, said))
    return texts


def play(
    arms: Sequence[Arm],
    kinds: Sequence[str],
    texts: Sequence[Text],
    draft: Model,
    vocabulary: int,
    round_trip: int,
) -> PlayedTruly:
    """Every arm on every text. Raises NotTheTargetsText for a text that was not recorded so.

    round_trip: milliseconds
    """
    results = {}
    for arm in arms:
        target = RecordedTarget()
        stage = stage_of(draft, target, vocabulary, round_trip / 1e3)
        player, readings = arm.begin(stage), list[Reading]()
        for text in texts:
            target.record(text)
            readings += checked(arm.name, player, stage, [text])
        results[arm.name] = Result(tuple(readings))
        print(f"{arm.name}: {results[arm.name].token_ms:.1f} ms a token", file=sys.stderr)
    cell = Cell(round_trip, "recorded", 0.0)
    return PlayedTruly(cell, Agreement(0, 0), results, tuple(kinds), (0.0, 0.0))


def markdown(played: PlayedTruly) -> str:
    """The arms over all texts, and each kind of text by itself."""
    heads = ("arm", "ms a token", "tokens a pass", "nodes a pass", "draft calls a token")
    rows = [
        [
            name,
            f"{result.token_ms:.1f}",
            f"{1 / result.each('forwards'):.2f}",
            f"{result.total('nodes') / result.total('forwards'):.1f}",
            f"{result.each('calls'):.2f}",
        ]
        for name, result in played.results.items()
    ]
    names = ("RTT ms:T", "kind", "arm", "texts", "of target-only (95 %)", "least, most")
    kinds = table_lines([*names, "forwards a token"], by_kind(played))
    return "\n".join([*table_lines(heads, rows), "", *kinds, ""])


def _parser() -> argparse.ArgumentParser:
    parser = command(__doc__)
    parser.add_argument("draft", metavar="DRAFT", help="the draft model")
    parser.add_argument("--texts", type=Path, required=True, metavar="FILE")
    parser.add_argument("--prompts", type=Path, required=True, metavar="DIR")
    parser.add_argument("--each", type=int, default=20, help="prompts of each kind")
    parser.add_argument("--tokens", type=int, default=64, help="of each recorded text")
    parser.add_argument("--round_trip", type=int, default=20, metavar="MS")
    parser.add_argument("--arms", default="hybrid,suffix", metavar="NAME,...")
    parser.add_argument("--draft_quantization", choices=get_args(Quantization))
    return parser


def main() -> int:
    given = _parser().parse_args()
    options = DraftRole(
        draft_model=given.draft,
        draft_quantization=given.draft_quantization,
        device="cpu",
        threads=1,
    )
    checkpoint = find_draft(options)
    asked = ask(checkpoint.tokenizer, given.prompts, given.each)
    texts = recorded_texts(asked, given.tokens, KeptTexts(given.texts))
    draft = checkpoint.load(options, Capacity(1, SEQUENCE_LENGTH, _ROOM, PREFILL_NODES))
    kinds = [one.kind for one in asked]
    vocabulary = checkpoint.tokenizer.vocabulary
    played = play(chosen_arms(given.arms), kinds, texts, draft, vocabulary, given.round_trip)
    print(markdown(played))
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main, debug=False))
