"""What a reader waits for, with a draft and without: the first piece, and the gaps between pieces.

    python -m benchmarks.first_token [--target_model DIR --draft_model DIR] [--draft model,copy]
    [--dtype bfloat16] [--emulate PROFILE] [--prompts 50,300] [--tokens 64] [--turns 5]
    [--json FILE]

The target runs in a process of its own. The draft runs in this one, with one thread. Both arms
make every text, in turn; before each turn the target makes one token of its prompt alone, so the
prefix is warm for both. Without models it is the embedded pair.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from threading import Event
from typing import NamedTuple

from benchmarks.harness import command, table_lines, write_json
from inference.command import run_command
from inference.draft_thread import take_short_turns
from inference.errors import InvalidRequest
from inference.sampling import SamplingParams
from outrider.client.client import Client, open_client
from outrider.options import PRECISIONS
from outrider.options.network import ConnectionOptions
from outrider.options.roles import SharedClientRole
from outrider.target.spawn import started
from outrider.terminal.live_text import silent
from outrider.text.completion import Completion, Request, gaps_of

SOURCE = Path(__file__).parent / "harness.py"
"""The text whose beginnings are the prompts."""

ALONE, DRAFTED = "target-only", "with a draft"


class Waits(NamedTuple):
    """What the reader of an arm's texts waited for: medians over texts, gaps of all together."""

    prompt: int  # tokens
    arm: str
    first_ms: float
    gap_p50_ms: float
    gap_p99_ms: float
    gap_max_ms: float
    tokens_per_second: float


def waits(prompt: int, arm: str, texts: Sequence[Completion]) -> Waits:
    """The arm's figures, from its texts of one prompt."""
    gaps = gaps_of(texts)
    return Waits(
        prompt,
        arm,
        median(done.time_to_first_token for done in texts) * 1e3,
        gaps.p50 * 1e3,
        gaps.p99 * 1e3,
        gaps.largest * 1e3,
        median(done.tokens_per_second for done in texts),
    )


def measure(client: Client, prompts: Sequence[int], tokens: int, turns: int) -> Iterator[Waits]:
    """Both arms on prompts of so many tokens. Raises InvalidRequest for one that does not fit."""
    rows, ids = client.wait(), client.tokenizer.encode(SOURCE.read_text(encoding="utf-8"))
    assert rows is not None, "something drafts"

    def make(length: int, most: int, *, alone: bool) -> Completion:
        asked = Request(0, "", ids[:length], SamplingParams(), most, frozenset())
        done = client.complete(asked, silent, Event(), alone=alone)
        rows.settle()
        return done

    for length in prompts:
        if length + tokens > client.length or length > len(ids):
            raise InvalidRequest(f"a prompt of {length} tokens and {tokens} more do not fit")
        texts: Mapping[str, list[Completion]] = {ALONE: [], DRAFTED: []}
        for turn in range(turns):
            make(length, 1, alone=True)
            for arm in sorted(texts, reverse=bool(turn % 2)):
                texts[arm].append(make(length, tokens, alone=arm == ALONE))
        for arm, made in texts.items():
            yield waits(length, arm, made)


def table(measured: Sequence[Waits]) -> list[str]:
    """Markdown: a row for each prompt and arm."""
    names = ("prompt", "arm", "first ms", "gap p50", "p99", "largest ms", "tokens/s")
    rows = [
        [str(one.prompt), one.arm, *(f"{figure:.1f}" for figure in one[2:])] for one in measured
    ]
    return table_lines(names, rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command(__doc__)
    parser.add_argument("--target_model", metavar="DIR")
    parser.add_argument("--draft_model", metavar="DIR")
    parser.add_argument("--draft", default="model,copy", help="as of outrider draft")
    parser.add_argument("--dtype", choices=PRECISIONS)
    parser.add_argument("--emulate", metavar="PROFILE", help="each forward takes what this says")
    parser.add_argument("--prompts", default="50,300", help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=64, help="of a text, at most")
    parser.add_argument("--turns", type=int, default=5, help="texts of each arm and prompt")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args(arguments)
    flags = {"target_model": given.target_model, "dtype": given.dtype, "emulate": given.emulate}
    told = [part for name, value in flags.items() if value for part in (f"--{name}", value)]
    own = {"dtype": given.dtype, "draft_model": given.draft_model, "draft": given.draft}
    take_short_turns()  # as the commands do
    with started("target", ["--device", "cpu", "--threads", "1", "--batch", "1", *told]) as there:
        options = SharedClientRole(
            connection=ConnectionOptions(target_host=there.address), device="cpu", threads=1, **own
        )
        with open_client(options) as client:
            prompts = [int(length) for length in given.prompts.split(",")]
            measured = list(measure(client, prompts, given.tokens, given.turns))
    print(*table(measured), sep="\n")
    write_json(given.json, [one._asdict() for one in measured])
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main, debug=False))
