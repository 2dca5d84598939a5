"""What a reader waits for, with a draft and without: the first piece, gaps, and the whole text.

    python -m benchmarks.first_token [--target_model DIR --draft_model DIR]
    [--emulate PROFILE] [--prompts 50,300 | --prompt_sets DIR --each 10] [--starts 2]

The target runs in a process of its own. The draft runs in this one, with one thread. Both arms
make every text, in turn; before each turn the target makes one token of its prompt alone, so the
prefix is warm for both. Without models it is the embedded pair. --prompt_sets takes prompts by
kind (benchmarks/prompts.py). --starts begins without kept times and starts both ends so often.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import geometric_mean, median
from tempfile import TemporaryDirectory
from threading import Event
from typing import NamedTuple

from benchmarks.harness import Flags, Folder, JsonFile, run, table_lines, write_json
from benchmarks.prompts import read_prompts
from inference.draft_thread import take_short_turns
from inference.errors import InvalidRequest
from inference.flags.values import Counts, ModelName, Name
from inference.sampling import SamplingParams
from outrider.client.client import Client, open_client
from outrider.options.groups import Precision
from outrider.options.network import ConnectionOptions
from outrider.options.roles import SharedClientRole
from outrider.target.spawn import started
from outrider.terminal.live_text import silent
from outrider.text.completion import Completion, Request
from outrider.text.pieces import gaps_between

SOURCE = Path(__file__).parent / "harness.py"
"""The text whose beginnings are the prompts."""

ALONE, DRAFTED = "target-only", "with a draft"


class Question(NamedTuple):
    """A prompt as ids, and the kind that its figures are stated under."""

    kind: str
    ids: list[int]


class Pair(NamedTuple):
    """The texts of one prompt, made in the same turn."""

    start: int  # which start of both ends, from 1
    kind: str
    alone: Completion
    drafted: Completion

    @property
    def speed(self) -> float:
        """Speed with a draft over target-only's, from the request to the last token."""
        return self.alone.seconds / self.drafted.seconds


class Waits(NamedTuple):
    """Waits of the reader of an arm's texts: medians over texts, gaps of all together."""

    start: int
    kind: str
    arm: str
    texts: int
    first_ms: float
    gap_p50_ms: float
    gap_p99_ms: float
    gap_max_ms: float
    tokens_per_second: float


def by_kind(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Return the texts in groups of one start and kind."""
    groups = {(one.start, one.kind): list[Pair]() for one in pairs}
    for one in pairs:
        groups[one.start, one.kind].append(one)
    return list(groups.values())


def waits(pairs: Sequence[Pair]) -> Iterator[Waits]:
    """Yield the figures of both arms, from texts of one kind and start."""
    start, kind = pairs[0].start, pairs[0].kind
    texts = {ALONE: [one.alone for one in pairs], DRAFTED: [one.drafted for one in pairs]}
    for arm, made in texts.items():
        gaps = gaps_between(one.arrivals for one in made)
        yield Waits(
            start,
            kind,
            arm,
            len(made),
            median(done.time_to_first_token for done in made) * 1e3,
            gaps.p50 * 1e3,
            gaps.p99 * 1e3,
            gaps.largest * 1e3,
            median(done.tokens_per_second for done in made),
        )


def measure(
    client: Client, start: int, questions: Sequence[Question], tokens: int, turns: int
) -> Iterator[Pair]:
    """Yield both arms' texts. Raises InvalidRequest for a prompt that does not fit."""
    rows = client.wait()
    assert rows is not None, "something drafts"

    def make(ids: list[int], most: int, *, alone: bool) -> Completion:
        asked = Request(0, "", ids, SamplingParams(), most, frozenset())
        done = client.complete(asked, silent, Event(), alone=alone).raise_failure()
        rows.settle()
        return done

    for number, (kind, ids) in enumerate(questions):
        if len(ids) + tokens > client.length:
            raise InvalidRequest(f"a prompt of {len(ids)} tokens and {tokens} more do not fit")
        for turn in range(turns):
            make(ids, 1, alone=True)
            first = bool((number + turn) % 2)
            made = {alone: make(ids, tokens, alone=alone) for alone in (first, not first)}
            yield Pair(start, kind, made[True], made[False])


def asked_questions(
    client: Client, lengths: Sequence[int], sets: Path | None, each: int
) -> list[Question]:
    """Return the prompts of the kinds, or beginnings of one text of so many tokens each."""
    if sets is not None:
        prompts = read_prompts(sets, each)
        return [Question(one.kind, client.tokenizer.encode(one.text, chat=True)) for one in prompts]
    ids = client.tokenizer.encode(SOURCE.read_text(encoding="utf-8"))
    if max(lengths) > len(ids):
        raise InvalidRequest(f"--prompts {max(lengths)}: at most {len(ids)} tokens are there")
    return [Question(f"{length} tokens", ids[:length]) for length in lengths]


def table(pairs: Sequence[Pair]) -> list[str]:
    """Markdown: a row for each start, kind and arm; then each text's speed over target-only."""
    names = ("start", "kind", "arm", "texts", "first ms", "gap p50", "p99", "largest", "tokens/s")
    rows = [
        [*map(str, one[:4]), *(f"{figure:.1f}" for figure in one[4:])]
        for group in by_kind(pairs)
        for one in waits(group)
    ]
    lines = [*table_lines(names, rows), ""]
    for group in by_kind(pairs):
        speeds = [one.speed for one in group]
        mean, each = geometric_mean(speeds), ", ".join(f"{speed:.2f}" for speed in speeds)
        head = f"- start {group[0].start}, {group[0].kind}"
        lines.append(f"{head}: {mean:.3f} of target-only ({each})")
    return lines


class Options(Flags):
    target_model: ModelName | None = None
    draft_model: ModelName | None = None
    draft: str = "model,copy"
    """as of outrider draft"""
    dtype: Precision | None = None
    emulate: Name | None = None
    """profile of times that each forward takes"""
    prompts: Counts = (50, 300)
    """tokens of each prompt"""
    prompt_sets: Folder | None = None
    """see benchmarks/prompts.py"""
    each: int = 10
    """prompts of each kind"""
    tokens: int = 64
    """of a text, at most"""
    turns: int = 5
    """texts of each arm and prompt"""
    starts: int = 0
    """0: one, with the times that are kept"""
    json_file: JsonFile = None


def main(given: Options) -> None:
    flags = {"target_model": given.target_model, "dtype": given.dtype, "emulate": given.emulate}
    told = [part for name, value in flags.items() if value for part in (f"--{name}", value)]
    told = ["--device", "cpu", "--threads", "1", "--batch", "1", *told]
    take_short_turns()  # as the commands do
    pairs = list[Pair]()
    with ExitStack() as stack:
        if given.starts:
            os.environ["XDG_CACHE_HOME"] = stack.enter_context(TemporaryDirectory())
        for start in range(1, max(given.starts, 1) + 1):
            with started("target", told) as there:
                where = ConnectionOptions(target_host=there.address)
                options = SharedClientRole(
                    connection=where,
                    device="cpu",
                    threads=1,
                    dtype=given.dtype,
                    draft_model=given.draft_model,
                    draft=given.draft,
                )
                with open_client(options) as client:
                    asked = asked_questions(client, given.prompts, given.prompt_sets, given.each)
                    for pair in measure(client, start, asked, given.tokens, given.turns):
                        pairs.append(pair)
                        print(f"{start} {pair.kind}: {pair.speed:.2f}", file=sys.stderr, flush=True)
    print(*table(pairs), sep="\n")
    write_json(given.json_file, [one._asdict() for group in by_kind(pairs) for one in waits(group)])


if __name__ == "__main__":
    run(Options, main)
