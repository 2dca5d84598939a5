"""What a token takes with a block draft, beside a draft of the same agreement that names one level
a call.

    python -m benchmarks.regret.block [--cells 20:misses:0.8,20:misses:0,...] [--held-out]
    [--laptops int8-laptop-computed,int4-laptop-ratios,...]

Texts, engine, link and virtual clock are the study's (benchmarks/regret). A node is ranked as the
cell's draft ranks it. What masks say is the embedded block draft's own word at that place, which
has nothing to do with the dial: it is a real draft of 0.6 M parameters. Where the cell's draft
misses, the mask does not name the target's token either. A call takes what the laptop's profile
says for its nodes, masks included; --laptops names other ones (benchmarks/regret/profiles). Every
text is compared with the target's own.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.harness import command, cpu_decoder, table_lines
from benchmarks.regret.arms import ALONE, GROWING, HYBRID, Arm, going_on
from benchmarks.regret.dial import NAMED, Level
from benchmarks.regret.pair import OUT_OF_REACH, MissingModel, PrefixModel
from benchmarks.regret.prefixes import EMPTY, Prefixes
from benchmarks.regret.settings import HELD_OUT_SERIES, MAIN, settings
from benchmarks.regret.stage import SEQUENCE_LENGTH, Pair, Stage, laptop, virtual_stage
from benchmarks.regret.study import Result, embedded_study, play
from inference.backends import Masks
from inference.command import run_command
from inference.drafters.copied_text import CopySource
from inference.drafters.draft import Draft
from inference.model.config import read_config
from inference.planner.prices import Prices
from inference.proposer import Proposer
from inference.sampling import SamplingParams
from outrider.draft_methods.block import read_masks
from outrider.models.loading import EMBEDDED

CELLS = "20:misses:0.8,20:misses:0,20:mid:0.8,20:mid:0"
LAPTOP = "int8-laptop-computed"

FIGURES = ("cell, draft, arm", "ms a token", "draft calls a token", "nodes sent a token")


@dataclass(frozen=True)
class Words:
    """What the embedded block draft says at masks, computed once."""

    masks: Masks
    prefixes: Prefixes  # of its own


def words_of(draft: Path, vocabulary: int) -> Words:
    masks = read_masks(draft, read_config(draft).vocab_size)
    decoder = cpu_decoder(draft, SEQUENCE_LENGTH, vocabulary, torch.float32)
    return Words(masks, Prefixes(decoder))


class MaskedPrefixModel(PrefixModel):
    """A draft of the dial, whose masks say what the block draft says."""

    def __init__(self, prefixes: Prefixes, draft: PrefixModel, words: Words) -> None:
        super().__init__(prefixes, 0.0)
        self._draft, self._words = draft, words
        self._target = PrefixModel(prefixes, 0.0)
        self._twins = {EMPTY: EMPTY}  # prefix -> the same tokens as a prefix of the block draft

    def logits_under(self, prefixes: Sequence[int], params: SamplingParams) -> Tensor:
        masked = [self._is_masked(prefix) for prefix in prefixes]
        said = torch.empty(len(prefixes), self._prefixes.vocabulary)
        plain = [prefix for prefix, one in zip(prefixes, masked, strict=True) if not one]
        if plain:
            rows = torch.tensor([not one for one in masked])
            said[rows] = self._draft.logits_under(plain, params)
        if any(masked):
            behind = [prefix for prefix, one in zip(prefixes, masked, strict=True) if one]
            words = self._words.prefixes.logits([self._twin(prefix) for prefix in behind])
            for row, prefix in zip(words, behind, strict=True):
                self._miss(row, prefix, params)
            said[torch.tensor(masked)] = words
        return said

    def _is_masked(self, prefix: int) -> bool:
        return self._prefixes.last(prefix)[0] == self._words.masks.token

    def _twin(self, prefix: int) -> int:
        line = list[int]()
        while prefix not in self._twins:
            line.append(prefix)
            prefix = self._prefixes.last(prefix)[1]
        twin = self._twins[prefix]
        for one in reversed(line):
            twin = self._twins[one] = self._words.prefixes.child(twin, self._prefixes.last(one)[0])
        return twin

    def behind(self, prefix: int) -> tuple[int, int]:
        """The node that a prefix ends in or has masks behind, and how many masks."""
        masks = 0
        while self._is_masked(prefix):
            prefix, masks = self._prefixes.last(prefix)[1], masks + 1
        return prefix, masks

    def followed(self, prefix: int, tokens: int, params: SamplingParams) -> int:
        """The prefix after so many more tokens of the target's own."""
        for _ in range(tokens):
            prefix = self._prefixes.child(prefix, self._target.choices([prefix], params).item())
        return prefix

    def _miss(self, said: Tensor, prefix: int, params: SamplingParams) -> None:
        """Take the target's token out of reach where the cell's draft misses it."""
        if not isinstance(self._draft, MissingModel):
            return
        node, masks = self.behind(prefix)
        prefix = self.followed(node, masks, params)
        if self._draft.misses(prefix):
            said[self._target.choices([prefix], params).item()] = said.min() - OUT_OF_REACH


class BlockPair(Pair):
    """A Pair whose draft has masks."""

    def __init__(self, prefixes: Prefixes, level: Level, pair: Pair, words: Words) -> None:
        super().__init__(prefixes, level, pair.texts)
        self._draft = MaskedPrefixModel(prefixes, self._draft, words)


def arms(masks: Masks) -> tuple[Arm, ...]:
    """The block draft without copies and with them, each behind its rival."""

    def block(stage: Stage, source: CopySource | None = None) -> Proposer:
        known, prices = stage.knowledge(), Prices(battery=True)
        draft = Draft(stage.draft, masks)
        return draft.proposer(0, known, prices, clock=stage.now, source=source)

    return (
        ALONE,
        GROWING,
        Arm("block", "growing", going_on(block)),
        HYBRID,
        Arm("block, copy", "growing", going_on(lambda stage: block(stage, CopySource()))),
    )


def row(name: str, result: Result) -> list[str]:
    """A line of the table of FIGURES."""
    made = [result.token_ms, *(result.each(field) for field in ("calls", "proposed"))]
    cells = [name, *(f"{figure:.2f}" for figure in made)]
    print(cells, file=sys.stderr, flush=True)
    return cells


def main() -> int:
    parser = command(__doc__)
    parser.add_argument("--cells", default=CELLS, metavar="PATTERN,...")
    parser.add_argument("--draft", type=Path, default=EMBEDDED / "block_draft")
    parser.add_argument("--held-out", action="store_true", help="held-out texts instead")
    parser.add_argument("--laptops", default=LAPTOP, metavar="NAME,...")
    given = parser.parse_args()
    torch.set_num_threads(1)
    series = HELD_OUT_SERIES[0] if given.held_out else MAIN
    study, rows = embedded_study(series.prompts, seed=series.seed), list[list[str]]()
    laptops = {name: laptop(name) for name in given.laptops.split(",")}
    for setting in settings(given.cells.split(",")):
        plain, prefixes = study.pair(setting.cell), study.prefixes
        words = words_of(given.draft, prefixes.vocabulary)
        pair = BlockPair(prefixes, NAMED[setting.cell.level], plain, words)
        for (name, profile), arm in product(laptops.items(), arms(words.masks)):
            profiles = setting.profiles._replace(here=profile)
            stage = virtual_stage(pair, setting.cell.round_trip / 1e3, profiles)
            rows.append(row(f"{setting}, {name}, {arm.name}", play(arm, stage, pair.texts)))
    print("\n".join(table_lines(FIGURES, rows)))
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main, debug=False))
