"""The study on what real models said: real prompts, a real draft and real copies, on a virtual
clock.

    python -m benchmarks.regret.recorded --pair TARGET,DRAFT --texts FILE [--file PROMPTS]
        [--each 4] [--temperature 0] [--tokens 192] [--users 1,4] [--profiles NAME,...]
        [--round_trip 20]

FILE keeps the texts of a target after PROMPTS, a file as outrider bench reads it, or pieces of
Python; with a temperature the i-th text has seed i. Missing texts are generated first, which is all
that needs TARGET. Then every user plays the next text of the list as soon as the one before is
finished. The engine, the loop, the proposers and the draft's ranking are real. The target repeats
the recorded texts, and calls take what the profiles say.

tokens/s counts as a load generator of a server does: all tokens of all texts, from the first
prompt to the last token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np

from benchmarks.harness import FileName, Flags, JsonFile, PairNames, run, table_lines, write_json
from benchmarks.own_texts import Text, load_model, own_texts, read_prompts
from benchmarks.regret.clock import Signal
from benchmarks.regret.pair import PathModel
from benchmarks.regret.prefixes import EMPTY
from benchmarks.regret.stage import (
    ALONE,
    HYBRID,
    PROFILES,
    Arm,
    Profiles,
    Reading,
    Stage,
    virtual_server,
)
from benchmarks.regret.study import Result, read
from inference.backends import Chosen, Model, Ranked, Segment
from inference.command import say
from inference.flags.values import Counts, Words
from inference.loop.draft_thread import inline
from inference.times_file import find_profile
from outrider.measure.figures import geometric_interval
from outrider.options.groups import Quantization

TRN2 = ("llama-3.1-8b-trn2.3xlarge-published", "llama-3.1-8b-trn2.3xlarge-computed")


class Played(NamedTuple):
    """Texts of all users by an arm, in the order of the list, and the seconds that all took."""

    result: Result
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens a second of all users together."""
        return self.result.total("length") / self.seconds


class RecordedTarget(PathModel):
    """A Model that says recorded texts after their prompts, and token 0 after anything else."""

    def __init__(self, texts: Sequence[Text], rows: int) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        self._next: dict[int, int] = {}
        super().__init__(self._number, rows)
        for text in texts:
            prefix = EMPTY
            for token, after in pairwise((*text.prompt, *text.tokens)):
                prefix = self._number(prefix, token)
                self._next[prefix] = after

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        return [
            Chosen(np.array([self._next.get(at, 0) for at in self._picked(one)], dtype=np.int32))
            for one in segments
        ]

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        raise NotImplementedError("a recorded target ranks nothing")

    def _number(self, prefix: int, token: int) -> int:
        return self._numbers.setdefault((prefix, token), 1 + len(self._numbers))


def play(
    arm: Arm,
    texts: Sequence[Text],
    users: int,
    draft: Model,
    vocabulary: int,
    profiles: Profiles,
    round_trip: float,
) -> Played:
    """Every text once, by so many users at a time. Raises NotTheTargetsText.

    draft: with a row for each user; round_trip: seconds
    """
    server = virtual_server(RecordedTarget(texts, users), vocabulary, profiles)
    clock, waiting = server.clock, deque(enumerate(texts))
    made, ends = dict[int, Reading](), [Signal() for _ in range(users)]

    def use(stage: Stage, end: Signal) -> None:
        try:
            drafter = inline(arm.propose(stage))
            while waiting:
                index, text = waiting.popleft()
                made[index] = read(arm.name, drafter, stage, text)
        finally:
            clock.notify(end)

    for row, end in enumerate(ends):
        stage = Stage(server, draft, round_trip, profiles, row)
        clock.start(partial(use, stage, end))
    for end in ends:
        clock.wait(end)
    if len(made) < len(texts):
        raise RuntimeError(f"{arm.name}: a user's thread has ended")
    return Played(Result(tuple(made[index] for index in range(len(texts)))), clock.now())


def row(profile: str, users: int, arm: Arm, played: Played, alone: Played) -> dict[str, str]:
    """A line of the table. ms a token: behind the first round"""
    result = played.result
    return {
        "profile": profile,
        "users": f"{users}",
        "arm": arm.name,
        "tokens/s": f"{played.rate:.1f}",
        "of target-only": f"{played.rate / alone.rate:.2f}x",
        "least of a text": f"{min(speeds(played, alone)):.2f}x",
        "ms a token": f"{result.token_ms:.1f}",
        "tokens a pass": f"{1 / result.each('forwards'):.2f}",
        "nodes a pass": f"{result.total('nodes') / result.total('forwards'):.1f}",
        "draft calls a token": f"{result.each('calls'):.2f}",
    }


def speeds(played: Played, alone: Played) -> list[float]:
    """Speed of each text as a multiple of target-only's, from its prompt to its last token."""
    pairs = zip(alone.result.readings, played.result.readings, strict=True)
    return [slow.whole_seconds / fast.whole_seconds for slow, fast in pairs]


def kinds(texts: Sequence[Text], speeds: Sequence[float]) -> Iterator[list[str]]:
    """A line for each kind of text: its geometric mean, with the interval of 95 %."""
    for kind in dict.fromkeys(text.kind for text in texts):
        mine = [speed for text, speed in zip(texts, speeds, strict=True) if text.kind == kind]
        mean, low, high = geometric_interval([[speed] for speed in mine])
        yield [kind, f"{len(mine)}", f"{mean:.2f}x ({low:.2f} to {high:.2f})"]


class Options(Flags):
    pair: PairNames
    """two models, as --draft_model takes them"""
    texts: FileName
    """of the target"""
    file: FileName | None = None
    """of prompts, as outrider bench reads them"""
    each: int = 4
    """prompts of each kind"""
    temperature: float = 0.0
    tokens: int = 192
    """of each text"""
    users: Counts = (1, 4)
    profiles: Words = TRN2
    """of the target"""
    round_trip: int = 20
    """milliseconds"""
    draft_quantization: Quantization | None = None
    """as --role draft has it"""
    json_file: JsonFile = None


def main(given: Options) -> None:
    rows, readings = list[dict[str, str]](), dict[str, list[Reading]]()
    target, name = given.pair
    found, draft = load_model(name, max(given.users), given.draft_quantization)
    prompts = read_prompts(found.tokenizer, given.file, given.each)
    texts = own_texts(target, prompts, given.temperature, given.tokens, given.texts)
    for name, users in product(given.profiles, given.users):
        profiles, trip = PROFILES._replace(target=find_profile(name)), given.round_trip / 1e3
        pair = draft, found.tokenizer.vocabulary, profiles, trip
        by_arm = {arm: play(arm, texts, users, *pair) for arm in (ALONE, HYBRID)}
        for arm, played in by_arm.items():
            rows.append(row(name, users, arm, played, by_arm[ALONE]))
            readings[f"{name}, {users}, {arm.name}"] = list(played.result.readings)
            say(", ".join(rows[-1].values()))
        if users == 1:
            lines = kinds(texts, speeds(by_arm[HYBRID], by_arm[ALONE]))
            print(*table_lines(("kind", name, "speed"), lines), "", sep="\n")
    print(*table_lines(list(rows[0]), [list(one.values()) for one in rows]), sep="\n")
    write_json(given.json_file, readings)


if __name__ == "__main__":
    run(Options, main)
