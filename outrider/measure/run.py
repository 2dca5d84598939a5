"""The measurement loop: arms (ways of generating text) answer each prompt in turn, and a journal
stores the results.

The order of arms is random for each turn, so that no arm always follows the same other arm. Before
each output the target generates one token from the prompt, so that all arms have a warm cache.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf
from random import Random
from threading import Event

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from inference.command import say
from inference.cost.billing import PER_MILLION, Billing, Figure
from inference.cost.energy import EnergyMeter, find_readers
from inference.errors import Unavailable
from outrider.client.client import Client
from outrider.measure.journal import Journal, TextKey, Values
from outrider.measure.sets import Item
from outrider.options.draft_flags import PRESETS
from outrider.options.groups import SamplingOptions
from outrider.text.completion import Completion, Request, silent
from outrider.text.parameters import Parameters
from outrider.text.prompts import Prompt, PromptTooLong, make_request


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """Yield a function to call with the name of each completed step."""
    if not sys.stderr.isatty():
        yield _lines(total)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("first step", total=total)
        yield lambda name: bar.update(task, advance=1, description=name)


def _lines(total: int) -> Callable[[str], None]:
    start, done = time.perf_counter(), 0

    def report(name: str) -> None:
        nonlocal done
        done += 1
        remaining = (time.perf_counter() - start) / done * (total - done)
        say(f"{done} of {total}: {name}; {remaining / 60:.1f} min left")

    return report


BASELINE, AGAIN = "target-only", "target-only again"
"""The arm that all others are compared with, and a second copy of that arm: the speed-up of one
over the other (an A/A test) shows the noise of a run.
"""

FUSED, LOCAL, FUSED_LOCAL = "fused", "target-only local", "fused local"
CHAIN, TREE = "synchronous chain", "synchronous tree"
GROWING, SUFFIX, HYBRID = "growing", "suffix", "hybrid"

ARCHITECTURES = {
    BASELINE: "vanilla",
    LOCAL: "",
    FUSED_LOCAL: "",
    FUSED: "eagle_sd",
    CHAIN: "classic_sd",
    TREE: "tree_sd",
    GROWING: "adaptive",
    SUFFIX: "suffix",
    HYBRID: "hybrid",
}
"""The preset of each architecture; empty if the target runs in this process."""

LOCAL_ARMS = (LOCAL, FUSED_LOCAL)


def command(arm: str) -> str:
    """Return the command of an architecture or preset as the end of a sentence; empty if none."""
    preset = ARCHITECTURES.get(arm, arm)
    if preset not in PRESETS:
        return ""
    flags = "" if preset == HYBRID else f" --preset {preset}"
    server = ", with outrider fused_target" if preset == "eagle_sd" else ""
    return f": `outrider run{flags}`{server}"


Make = Callable[[Request, Event], Completion]
"""Generates an output, cut short if the event is set meanwhile. Raises the error on failure."""


@dataclass(frozen=True)
class Arm:
    """A way of generating text.

    alone: generates target-only over the same link, to warm the prompt cache before each output
    billing: prices, and watts for devices without a meter
    joint: draft and target both run on this machine, whose meters count their energy together
    """

    name: str
    make: Make
    alone: Make
    billing: Billing
    joint: bool
    emulated: bool = False

    def costs(self, done: Completion, reading: Figure) -> dict[str, Figure]:
        """Return US dollars and joules per million tokens of an output, by their names in its
        record. Joules always include both sides.

        reading: joules of this machine during generation
        """
        tokens = len(done.token_ids)
        if self.emulated:
            reading = Figure.unavailable(
                "the target is emulated: this machine's joules are not its"
            )
        joules = reading.times(1 / tokens)
        if not self.joint or reading.value is None:
            drafting = None if reading.value is None else reading
            joules = self.billing.figures(tokens, done.usage, drafting)["energy_total"]
            if joules.value is None and reading.value is None:
                joules = Figure.unavailable(f"{reading.source}; {joules.source}")
        return {
            "usd_per_million": done.cost.times(PER_MILLION / tokens),
            "joules_per_million": joules.times(PER_MILLION),
        }


def client_arm(name: str, client: Client) -> Arm:
    """Return an arm that generates with a client, and with its draft unless named target-only."""

    def alone(request: Request, cancelled: Event) -> Completion:
        return client.complete(request, silent, cancelled, alone=True).raise_failure()

    def drafted(request: Request, cancelled: Event) -> Completion:
        done = client.complete(request, silent, cancelled).raise_failure()
        if (rows := client.wait()) is not None:
            rows.settle()  # a forward pass still running would slow the next output
        return done

    return Arm(
        name,
        alone if name == BASELINE else drafted,
        alone,
        client.budget.billing,
        client.shares_device,
        client.target.description.emulated,
    )


WARM_UP_TOKENS = 8
"""Tokens that each arm generates before the measurement starts."""


@dataclass
class Run:
    """Generates the outputs of some arms over one link, except those already in the journal.

    client: the client of target-only, which builds the requests
    text: sampling and length; prompt i uses seed + i
    warm: whether every arm generates a few tokens first
    seconds: time limit; a prompt that would exceed it is not started
    """

    journal: Journal
    arms: Sequence[Arm]
    client: Client
    text: SamplingOptions
    rtt_ms: float = 0.0
    warm: bool = True
    seconds: float = inf
    latest: dict[str, Completion] = field(default_factory=dict, init=False)  # by arm name

    def __post_init__(self) -> None:
        self._readers = find_readers()

    def make(self, items: Sequence[Item], repeats: int = 1) -> None:
        """Run all arms on these prompts within the time limit. Prompts with a schema are skipped if
        the target does not support schemas.
        """
        rules = self.client.target.description.rules
        items = [item for item in items if item.schema is None or rules]
        start, slowest = time.perf_counter(), 0.0
        with progress(repeats * len(items)) as report:
            for repeat, (index, item) in product(range(repeats), enumerate(items)):
                begin = time.perf_counter()
                if begin - start + slowest > self.seconds:
                    return
                self._converse(item, index, repeat)
                slowest = max(slowest, time.perf_counter() - begin)
                report(f"{item.kind} {item.name}")

    def _converse(self, item: Item, index: int, repeat: int) -> None:
        """Run all turns of a prompt with all arms. Each arm's chat contains its own answers."""
        answers = {arm.name: list[str]() for arm in self.arms}
        for turn in range(len(item.turns)):
            order = Random(f"{repeat} {index} {turn}")  # noqa: S311 (which arm is first is no secret)
            for arm in order.sample(self.arms, len(self.arms)):
                key = TextKey(*item[:3], turn, repeat, self.rtt_ms, arm.name)
                text = self.journal.texts.get(key)
                if text is None:
                    try:
                        request = self._request(item, index, answers[arm.name])
                    except PromptTooLong as error:
                        say(f"left out: {item.kind} {item.name}, turn {turn + 1}: {error}")
                        return
                    text = self._text(arm, key, request)
                    self.journal.write("text", text)
                answers[arm.name].append(text["text"])

    def _request(self, item: Item, index: int, answers: Sequence[str]) -> Request:
        """Return the request for a prompt's next turn: messages, or their contents joined if the
        model has no chat template.
        """
        text, messages = self.text, item.messages(answers)
        parameters = Parameters(
            max_tokens=text.max_new_tokens, top_k=text.top_k, top_p=text.top_p,
            temperature=text.temperature if item.temperature is None else item.temperature,
            seed=(text.seed or 0) + index, schema=item.schema,
        )  # fmt: skip
        plain = "\n\n".join(message["content"] for message in messages)
        prompt: Prompt = messages if self.client.tokenizer.template else plain
        return make_request(self.client.text_model, prompt, parameters, index)

    def _text(self, arm: Arm, key: TextKey, request: Request) -> Values:
        """Generate an output while reading energy meters. Returns the output's record."""
        if self.warm:
            few = replace(request, max_new_tokens=min(WARM_UP_TOKENS, request.max_new_tokens))
            for cold_arm in self.arms:
                cold_arm.make(few, Event())
            self.warm = False
        arm.alone(replace(request, max_new_tokens=1), Event())
        with EnergyMeter(self._readers) as meter:
            done = arm.make(request, Event())
        if not done.whole:
            raise Unavailable(f"a text was not generated whole: it ended as {done.finish_reason}")
        self.latest[arm.name], costs = done, arm.costs(done, meter.joules)
        return {
            **done.record(),
            **key._asdict(),
            **{name: figure.record() for name, figure in costs.items()},
        }
