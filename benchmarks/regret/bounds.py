"""What a token would take with drafts better than there are: which lever is left.

    python -m benchmarks.regret.bounds [--cells 20:misses:0.8] [--held-out]

The study's cell (benchmarks/regret) with the misses of its level, and one thing after the other
idealized: the time of a call, the masks, the draft's first guess. Masks that know are told the
target's tokens between their node and themselves, and say what the cell's draft says there. A sure
draft says what the target says wherever it does not miss. Every text is the target's own.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.harness import command, table_lines
from benchmarks.regret.block import FIGURES, MaskedPrefixModel, Words, arms, row, words_of
from benchmarks.regret.dial import MISSES, Level
from benchmarks.regret.pair import PrefixModel, drawn
from benchmarks.regret.prefixes import Prefixes
from benchmarks.regret.settings import HELD_OUT_SERIES, MAIN, settings
from benchmarks.regret.stage import Pair, virtual_stage
from benchmarks.regret.study import embedded_study, play
from inference.command import run_command
from inference.sampling import SamplingParams
from outrider.models.loading import EMBEDDED

SURE = Level("sure", 0.0, misses=0.045)
"""Right wherever it does not miss, and misses as often as the study's level does."""

_SALT = 77  # chooses whose masks know

QUICK = 0.01
"""Of the time of a call, where it is to cost nothing."""


class Bound(NamedTuple):
    """An arm and what is idealized for it.

    share: of all nodes, those whose masks know the tokens between
    speed: seconds of a call, as a multiple of the study's
    """

    arm: str
    said: str
    share: float = 0.0
    sure: bool = False
    speed: float = 1.0


BOUNDS = (
    Bound("hybrid", "calls of half the time", speed=0.5),
    Bound("growing", "calls that take nothing", speed=QUICK),
    Bound("hybrid", "calls that take nothing", speed=QUICK),
    Bound("growing", "sure draft", sure=True),
    Bound("block, copy", "half of the masks know", share=0.5),
    Bound("block", "masks know", share=1.0),
    Bound("block, copy", "masks know", share=1.0),
    Bound("block", "masks know, sure draft", share=1.0, sure=True),
)


class KnowingModel(MaskedPrefixModel):
    """A MaskedPrefixModel, the masks of a share of whose nodes know the tokens between."""

    def __init__(self, prefixes: Prefixes, draft: PrefixModel, words: Words, share: float) -> None:
        super().__init__(prefixes, draft, words)
        self._share = share

    def logits_under(self, prefixes: Sequence[int], params: SamplingParams) -> Tensor:
        said = super().logits_under(prefixes, params)
        places = [(at, *self.behind(prefix)) for at, prefix in enumerate(prefixes)]
        known = {
            at: self.followed(node, masks, params)
            for at, node, masks in places
            if masks and drawn(self._prefixes.key(node) + _SALT) < self._share
        }
        if known:
            said[list(known)] = self._draft.logits_under(list(known.values()), params)
        return said


class BoundPair(Pair):
    """A Pair whose draft is idealized."""

    def __init__(self, prefixes: Prefixes, bound: Bound, pair: Pair, words: Words) -> None:
        super().__init__(prefixes, SURE if bound.sure else MISSES, pair.texts)
        self._draft = KnowingModel(prefixes, self._draft, words, bound.share)


def main() -> int:
    parser = command(__doc__)
    parser.add_argument("--cells", default="20:misses:0.8", metavar="PATTERN,...")
    parser.add_argument("--draft", type=Path, default=EMBEDDED / "block_draft")
    parser.add_argument("--held-out", action="store_true", help="held-out texts instead")
    given = parser.parse_args()
    torch.set_num_threads(1)
    series = HELD_OUT_SERIES[0] if given.held_out else MAIN
    study, rows = embedded_study(series.prompts, seed=series.seed), list[list[str]]()
    for setting in settings(given.cells.split(",")):
        plain, prefixes = study.pair(setting.cell), study.prefixes
        words = words_of(given.draft, prefixes.vocabulary)
        players = {arm.name: arm for arm in arms(words.masks)}
        for bound in BOUNDS:
            pair = BoundPair(prefixes, bound, plain, words)
            profiles = setting._replace(draft=bound.speed).profiles
            stage = virtual_stage(pair, setting.cell.round_trip / 1e3, profiles)
            result = play(players[bound.arm], stage, pair.texts)
            rows.append(row(f"{setting}, {bound.said}, {bound.arm}", result))
    print("\n".join(table_lines(FIGURES, rows)))
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main, debug=False))
