"""JSON of schemas, made with and without a draft that knows the grammar.

    python -m benchmarks.grammar [--clock real] [--target_model DIR --draft_model DIR] [--chat]
    [--round_trip MS] [--temperatures 0,0.7,1] [--turns 1] [--tokens 256] [--json FILE]

Four arms make the texts of benchmarks/schemas.json, whose grammar binds them all: the target alone;
a draft that knows no grammar; one that ranks only what the grammar allows; and one that names
forced tokens without a call, too. All drafts copy. By the virtual clock (the default) the models
compute on this machine and take the times of the regret study's profiles, across a link. By the
real clock the target runs in a process of its own, and --emulate says what its forwards take.
Without models it is the embedded pair. The prefix is warm for every arm. Each text is held against
the target's own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import geometric_mean
from threading import Event
from typing import Literal, NamedTuple, TypeAlias, cast

from benchmarks.harness import Flags, JsonFile, run, table_lines, write_json
from benchmarks.regret.stage import PROFILES, SEQUENCE_LENGTH, Stage, virtual_server
from inference.backends import Model
from inference.decode import Loop
from inference.draft_thread import inline, on_thread, take_short_turns
from inference.draft_tuning import TUNING
from inference.drafters.copied_text import CopySource
from inference.drafters.draft import Draft
from inference.flags.values import ModelName, Name, NumberList
from inference.grammar import Grammars
from inference.planner.prices import Prices
from inference.sampling import Grammar, GrammarKind, SamplingParams
from inference.text import Tokenizer
from inference.token_rule import TokenRule
from outrider.client.connecting import connect_target, target_tokenizer
from outrider.client.pools import GrowingRows, Pair
from outrider.draft_methods import find_draft
from outrider.models.capacity import Capacity
from outrider.models.loading import PREFILL_NODES, find_named
from outrider.models.profiles import user_profiles
from outrider.money.goal import Goal
from outrider.options.groups import Precision
from outrider.options.network import ConnectionOptions
from outrider.options.roles import SharedClientRole
from outrider.target.spawn import started
from outrider.terminal.live_text import silent
from outrider.text.completion import Request, complete

ALONE, UNRULED, RANKED, FORCED = "target-only", "draft", "draft, masks", "draft, masks, forced"

TASKS = Path(__file__).parent / "schemas.json"


class Task(NamedTuple):
    """A prompt, and the schema of its answer. chat: whether it is a user's turn"""

    name: str
    prompt: str
    schema: str
    chat: bool


class Reading(NamedTuple):
    """A text as an arm made it. calls: of the draft, those for prompts left out"""

    arm: str
    temperature: float
    task: str
    tokens: tuple[int, ...]
    seconds: float
    forwards: int
    calls: int


Make: TypeAlias = Callable[[str, Task, SamplingParams, int], Reading]
"""Makes a text: the arm, the task, its sampling, and the tokens at most."""


class Bench(NamedTuple):
    """A pair that makes texts. grammars: of its drafts"""

    make: Make
    grammars: Grammars


class _Unforced:
    """Grammars whose rules force nothing, though they mask."""

    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars

    def rule(self, prompt: Sequence[int], params: SamplingParams) -> TokenRule | None:
        rule = self._grammars.rule(prompt, params)
        if rule is not None:
            rule.forced = lambda path: ()  # type: ignore[method-assign]
        return rule


def grammars_of(arm: str, grammars: Grammars) -> Grammars | None:
    """Return what the draft of an arm knows."""
    if arm == RANKED:
        return cast(Grammars, _Unforced(grammars))
    return grammars if arm == FORCED else None


def read_tasks(*, told: bool, chat: bool) -> Iterator[Task]:
    """Yield the tasks. told: whether prompts name the schema"""
    for one in json.loads(TASKS.read_text(encoding="utf-8")):
        prompt, schema = one["prompt"], json.dumps(one["schema"])
        if told:
            prompt += f"\nAnswer with JSON of this schema:\n{schema}\n"
        yield Task(one["name"], prompt, schema, chat)


def request_of(
    task: Task, tokenizer: Tokenizer, params: SamplingParams, tokens: int, stop: frozenset[int]
) -> Request:
    """Return the request of a task."""
    ids = tokenizer.encode(task.prompt, chat=task.chat)
    return Request(0, task.prompt, ids, params, tokens, stop)


@contextmanager
def virtual(given: Options) -> Iterator[Bench]:
    """A pair on a virtual clock."""
    options = SharedClientRole(device="cpu", threads=1, dtype=given.dtype)
    found = [find_named(name, kind).settled(options, drafts=kind == "draft") for name, kind in (
        (given.target_model, "target"), (given.draft_model, "draft"))]  # fmt: skip
    nodes = Capacity(1, SEQUENCE_LENGTH, TUNING.room, PREFILL_NODES)
    target, draft = (cast(Model, one.load(options, nodes)) for one in found)
    tokenizer, stop = found[0].tokenizer, found[0].stop_ids
    grammars = Grammars(tokenizer.to_json(), tokenizer.vocabulary, sorted(stop))
    server = virtual_server(target, tokenizer.vocabulary, PROFILES, grammars)
    arms = {}
    for arm in (ALONE, UNRULED, RANKED, FORCED):
        stage = Stage(server, draft, given.round_trip / 1e3, PROFILES)
        drafts = Draft(stage.draft, grammars=grammars_of(arm, grammars)).proposer(
            0, stage.knowledge(), Prices(battery=True), clock=stage.now, source=CopySource()
        )
        arms[arm] = stage, inline([] if arm == ALONE else [drafts])

    def make(arm: str, task: Task, params: SamplingParams, tokens: int) -> Reading:
        stage, drafter = arms[arm]
        asked = request_of(task, tokenizer, params, tokens, stop)
        made, began, before = list[int](), stage.now(), stage.spent()
        with closing(stage.session) as session:
            loop = Loop(asked.ids, params, session, asked.order(), drafter, stage.now)
            with closing(loop):
                for step in loop.steps():
                    made += step.tokens
            seconds, used = stage.now() - began, loop.drafting.usage
            loop.drafting.settle()
        forwards = stage.spent().traffic.forwards - before.traffic.forwards
        return Reading(
            arm, params.temperature, task.name, tuple(made), seconds, forwards, used.calls
        )

    yield Bench(make, grammars)


@contextmanager
def real(given: Options) -> Iterator[Bench]:
    """A pair by the clock, the target in a process of its own."""
    flags = {"target_model": given.target_model, "dtype": given.dtype, "emulate": given.emulate}
    told = [part for name, value in flags.items() if value for part in (f"--{name}", value)]
    take_short_turns()  # as the commands do
    with started("target", ["--device", "cpu", "--threads", "1", "--batch", "1", *told]) as there:
        options = SharedClientRole(
            connection=ConnectionOptions(target_host=there.address),
            device="cpu",
            threads=1,
            dtype=given.dtype,
            draft_model=given.draft_model,
        )
        found = find_draft(options).settled(options)
        with connect_target(options.connection) as target:
            found = found.for_target(target_tokenizer(target, found.tokenizer, found.name))
            about, tokenizer = target.description, found.tokenizer
            length = found.sequence_length(about.sequence_length)
            draft = found.load(options, Capacity(1, length, TUNING.room, PREFILL_NODES))
            times = found.times(user_profiles(options), draft, length)
            grammars = Grammars(tokenizer.to_json(), about.vocabulary, sorted(about.stop_ids))
            rows = {
                arm: GrowingRows(
                    draft._replace(grammars=grammars_of(arm, grammars)),
                    Pair(target, times, None),
                    Goal(),
                    [CopySource()],
                )
                for arm in (UNRULED, RANKED, FORCED)
            }

            def make(arm: str, task: Task, params: SamplingParams, tokens: int) -> Reading:
                asked = request_of(task, tokenizer, params, tokens, about.stop_ids)
                drafter = inline() if arm == ALONE else on_thread(rows[arm].lent)
                done = complete(asked, target.session(), drafter, tokenizer, silent, Event())
                done.raise_failure()
                if arm != ALONE:
                    rows[arm].settle()
                return Reading(
                    arm,
                    params.temperature,
                    task.name,
                    tuple(done.token_ids),
                    done.seconds,
                    done.traffic.forwards,
                    done.draft_calls,
                )

            yield Bench(make, grammars)


def measure(bench: Bench, given: Options) -> Iterator[Reading]:
    """Yield the readings of all arms, text by text."""
    arms = (ALONE, UNRULED, RANKED, FORCED)
    for task in read_tasks(told=given.told, chat=given.chat):
        grammar = Grammar(GrammarKind.JSON_SCHEMA, task.schema)
        for number, temperature in enumerate(given.temperatures):
            for turn in range(given.turns):
                params = SamplingParams(temperature, seed=1 + turn, grammar=grammar)
                bench.make(ALONE, task, params, 1)
                bench.grammars.rule([0], params)  # both ends have checked it before they are timed
                for place in range(len(arms)):
                    arm = arms[(place + number + turn) % len(arms)]
                    one = bench.make(arm, task, params, given.tokens)
                    print(arm, *one[1:3], f"{one.seconds:.3f} s", file=sys.stderr, flush=True)
                    yield one


def table(readings: Sequence[Reading]) -> list[str]:
    """Markdown: a row for each temperature and arm. Speeds are geometric means over texts."""
    heads = ("T", "arm", "equal texts", "tokens", "forwards", "a forward", "draft calls",
             "seconds", "of target-only", "of draft, masks")  # fmt: skip
    rows = list[list[str]]()
    by_arm = {(one.temperature, one.arm): list[Reading]() for one in readings}
    for one in readings:
        by_arm[one.temperature, one.arm].append(one)
    for (temperature, arm), made in sorted(by_arm.items()):
        alone, masked = by_arm[temperature, ALONE], by_arm[temperature, RANKED]
        same = sum(a.tokens == b.tokens for a, b in zip(made, alone, strict=True))
        tokens, forwards = sum(len(one.tokens) for one in made), sum(one.forwards for one in made)
        speeds = [
            geometric_mean(a.seconds / b.seconds for a, b in zip(base, made, strict=True))
            for base in (alone, masked)
        ]
        figures = (f"{tokens / forwards:.2f}", str(sum(one.calls for one in made)),
                   f"{sum(one.seconds for one in made):.2f}",
                   *(f"{speed:.2f}" for speed in speeds))  # fmt: skip
        counts = (f"{same} of {len(made)}", str(tokens), str(forwards))
        rows.append([f"{temperature:g}", arm, *counts, *figures])
    return table_lines(heads, rows)


class Options(Flags):
    clock: Literal["virtual", "real"] = "virtual"
    target_model: ModelName | None = None
    draft_model: ModelName | None = None
    dtype: Precision | None = None
    emulate: Name | None = None
    """profile of times that each forward takes, by the real clock"""
    round_trip: float = 20.0
    """milliseconds, by the virtual clock"""
    temperatures: NumberList = (0.0, 0.7, 1.0)
    chat: bool = False
    """prompts are users' turns"""
    told: bool = True
    """prompts name the schema"""
    tokens: int = 256
    """of a text, at most"""
    turns: int = 1
    """texts of each task, temperature and arm, with a seed each"""
    json_file: JsonFile = None


def main(given: Options) -> None:
    begin = virtual if given.clock == "virtual" else real
    with begin(given) as bench:
        readings = list(measure(bench, given))
    print(*table(readings), sep="\n")
    write_json(given.json_file, [one._asdict() for one in readings])


if __name__ == "__main__":
    run(Options, main)
