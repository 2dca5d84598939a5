"""Runs `outrider bench`: every prompt by target-only and by each way of drafting, in turn.

All texts are made by `Client.complete`, as the commands make them. Before each text the target
makes one token of its prompt, so the prompt's keys are equally warm for all arms.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from threading import Event
from typing import NamedTuple

from inference.command import say
from inference.cost.energy import find_readers
from inference.draft_thread import take_short_turns
from inference.errors import InvalidRequest, Unavailable
from inference.text import Tokenizer
from outrider.client.client import Client, open_client
from outrider.client.probing import measure_round_trip
from outrider.draft_methods import find_draft
from outrider.measure.bench_options import BenchOptions
from outrider.measure.bench_report import write_results
from outrider.measure.figures import BASELINE
from outrider.measure.journal import Journal, TextKey, Values, opened, plan_of
from outrider.measure.link import LinkShape
from outrider.measure.report import environment
from outrider.measure.rows import Account, read_meters
from outrider.measure.sandbox import UNPROTECTED, check_sandbox
from outrider.measure.scoring import score
from outrider.measure.sets import Item
from outrider.measure.testbed import over_link
from outrider.money.goal import read_billing
from outrider.target.spawn import first_start, started, target_words
from outrider.terminal.live_text import silent
from outrider.text.completion import Completion, Request
from outrider.text.parameters import Parameters
from outrider.text.prompts import Prompt, PromptTooLong, make_request

WARM_UP, WARM_UP_TOKENS = "Name three colours.", 8
"""The prompt that every arm answers before anything counts, and the tokens of its answer."""

TOKEN_SECONDS = 0.03
"""Seconds a token that the estimate before a run assumes."""

_ALSO_OF_TARGET = ("backend", "batch", "emulate", "measure_first", "usd_per_hour")


class ClientArm(NamedTuple):
    """One way of making a text: a client with its draft, or the same client with none."""

    name: str
    client: Client
    draft: str  # tells the draft from every other; empty for none

    def complete(self, request: Request, *, alone: bool = False) -> Completion:
        """Make a whole text. Raises the error that ended it.

        alone: target-only, whatever the arm is
        """
        alone = alone or self.name == BASELINE
        done = self.client.complete(request, silent, Event(), alone=alone).raise_failure()
        if not done.whole:
            raise Unavailable(f"a text was not made whole: it ended as {done.finish_reason}")
        if not alone and (rows := self.client.wait()) is not None:
            rows.settle()  # its last call is not to slow the next text
        return done


def bench(options: BenchOptions) -> int:
    """Make the texts that the run lacks, and write and print its summary in any case."""
    items, out = options.items(), Path(options.out)
    if options.no_sandbox:
        say(f"note: code that models write may {UNPROTECTED}")
    elif options.run_code:
        check_sandbox()
    if not (options.yes or options.names_prompts or _confirm(options, items)):
        return 1
    take_short_turns()
    with opened(out, plan_of(options.settings, items)) as journal:
        try:
            if not journal.known.ends:
                _make_texts(options, items, journal)
                journal.write("end", {"load": environment()["load"]})
        finally:  # a run that was ended has a summary of its texts, too
            if journal.known.texts:
                print(write_results(out, journal.known))
    return 0


def _confirm(options: BenchOptions, items: Sequence[Item]) -> bool:
    """Print what would run, and ask. Raises InvalidRequest where there is no terminal."""
    print(_summary(options, items), flush=True)
    if not sys.stdin.isatty():
        raise InvalidRequest("no terminal to ask on: start it with `outrider bench --yes`")
    return input("run this? [y/N] ").strip().lower() in ("y", "yes")


def _summary(options: BenchOptions, items: Sequence[Item]) -> str:
    """Return what a run would do, in three lines."""
    kinds = Counter(item.kind for item in items)
    arms = [BASELINE, *(preset or options.draft for preset in options.presets or (options.preset,))]
    texts = sum(len(item.turns) for item in items) * len(arms) * options.num_runs
    tokens = texts * options.text.max_new_tokens
    return "\n".join(
        (
            f"prompts  {', '.join(options.sets)}: {len(items)} ("
            + ", ".join(f"{kind} {count}" for kind, count in kinds.items())
            + ")",
            f"texts    {texts}: each turn by {' and '.join(arms)}, up to "
            f"{options.text.max_new_tokens} tokens",
            f"time     up to {tokens * TOKEN_SECONDS / 60:.0f} min at "
            f"{TOKEN_SECONDS * 1000:.0f} ms a token; --samples N takes N prompts of each kind",
        )
    )


def _make_texts(options: BenchOptions, items: Sequence[Item], journal: Journal) -> None:
    """Make the texts that a run lacks. With --fresh each repetition starts both ends anew."""
    every = range(options.num_runs)
    for repeats in [[one] for one in every] if options.fresh else [every]:
        if any(key.repeat > repeats[-1] for key in journal.known.texts):
            continue  # a later start has begun
        with ExitStack() as stack:
            if options.fresh:
                stack.enter_context(first_start(Path(options.out).absolute() / "cache"))
            measured = stack.enter_context(_measurement(options, journal))
            journal.start(measured.about())
            measured.run(items, repeats)


@contextmanager
def _measurement(options: BenchOptions, journal: Journal) -> Iterator[_Measurement]:
    """Start a target unless one is named, and load all drafts."""
    with ExitStack() as stack:
        connection = options.connection
        if not options.elsewhere:
            more = {"batch": 1} | options.stated()  # one row unless --batch says otherwise
            words = target_words(options, **{name: more.get(name) for name in _ALSO_OF_TARGET})
            target = stack.enter_context(started("target", words))
            connection = connection.but(target_host=target.address)
        shape = LinkShape(delay_ms=options.rtt / 2, mbit=options.bandwidth)
        reached = stack.enter_context(over_link(connection, shape))
        arms = list[ClientArm]()
        for name, role in options.clients(reached):
            client = stack.enter_context(open_client(role, is_local=connection.is_local))
            found = None if role.method is None or role.target_only else find_draft(role)
            arms.append(ClientArm(name, client, "" if found is None else found.fingerprint()))
        for arm in arms:
            arm.client.wait()
        yield _Measurement(options, [ClientArm(BASELINE, arms[0].client, ""), *arms], journal)


class _Measurement:
    """A run of prompts by arms that are ready, which tells how far it is."""

    def __init__(self, options: BenchOptions, arms: Sequence[ClientArm], journal: Journal) -> None:
        self._options, self._arms, self._journal = options, arms, journal
        there = arms[0].client.target.description
        billing = read_billing(options.goal).described(there.usd_per_hour)
        self._takes_schemas = there.rules
        self._account = Account(billing, not options.elsewhere, bool(options.emulate))
        self._readers = find_readers()
        self._begun, self._made = time.perf_counter(), 0

    def about(self) -> Values:
        """The models, the machine and the link, as they are now."""
        target = self._arms[0].client.target
        there = target.description
        models = {"target": f"{there.model} {there.model_fingerprint}", "type": there.dtype}
        models |= {"device": there.device} | {arm.name: arm.draft for arm in self._arms}
        trip = measure_round_trip(target.probe, say)
        about = {"models": models, "shared": self._arms[0].client.shares_device, "round_trip": trip}
        return about | {"environment": environment()}

    def run(self, items: Sequence[Item], repeats: Sequence[int]) -> None:
        """Make the texts of these repetitions that are not made yet."""
        if not self._options.fresh:
            self._warm_up()
        for place, (repeat, (index, item)) in enumerate(product(repeats, enumerate(items))):
            before, places = self._made, len(repeats) * len(items)
            if item.schema is None or self._takes_schemas:
                self._converse(item, index, repeat)
            if self._made > before:
                turns = len(item.turns) * len(self._arms) * (places - place - 1)
                left = (time.perf_counter() - self._begun) / self._made * turns
                say(f"{place + 1} of {places}: {item.kind} {item.name}; {left / 60:.0f} min left")

    def _warm_up(self) -> None:
        for arm in self._arms:
            prompt = _prompt([WARM_UP], [], None, arm.client.tokenizer)
            arm.complete(make_request(arm.client, prompt, Parameters(max_tokens=WARM_UP_TOKENS)))

    def _converse(self, item: Item, index: int, repeat: int) -> None:
        """Make all turns of a prompt by all arms. Each arm goes on from its own texts."""
        said = {arm.name: list[str]() for arm in self._arms}
        for turn in range(len(item.turns)):
            first = (repeat + index + turn) % len(self._arms)
            for arm in (*self._arms[first:], *self._arms[:first]):
                key = TextKey(*item[:3], turn, repeat, arm.name)
                text = self._journal.known.texts.get(key)
                if text is None:
                    try:
                        request = self._request(arm, item, said[arm.name], index)
                    except PromptTooLong as error:
                        say(f"left out: {item.kind} {item.name}, turn {turn + 1}: {error}")
                        return
                    text = self._make(arm, item, key, request)
                    self._journal.write("text", text)
                    self._made += 1
                said[arm.name].append(text["text"])

    def _request(self, arm: ClientArm, item: Item, said: Sequence[str], index: int) -> Request:
        text = self._options.text
        parameters = Parameters(
            max_tokens=text.max_new_tokens,
            temperature=text.temperature,
            top_k=text.top_k,
            top_p=text.top_p,
            seed=text.seed + index,
            schema=item.schema,
        )
        prompt = _prompt(item.turns, said, item.system, arm.client.tokenizer)
        return make_request(arm.client, prompt, parameters, index)

    def _make(self, arm: ClientArm, item: Item, key: TextKey, request: Request) -> Values:
        """Make a text, with the meters read meanwhile."""
        arm.complete(replace(request, max_new_tokens=1), alone=True)
        made = read_meters(self._readers, arm.complete, request)
        last = key.turn + 1 == len(item.turns)
        done, read, tokens = made.done, made.joules, len(made.done.token_ids)
        return {
            **done.record(),
            **key._asdict(),
            "score": self._score(item, done.text) if last else None,
            "usd_per_million": self._account.usd_per_million(tokens, done.usage, read).record(),
            "joules_per_million": self._account.joules_per_million(
                tokens, done.usage, read
            ).record(),
        }

    def _score(self, item: Item, text: str) -> bool | None:
        options = self._options
        return score(item, text, options.run_code, sandboxed=not options.no_sandbox)


def _prompt(
    turns: Sequence[str], said: Sequence[str], system: str | None, tokenizer: Tokenizer
) -> Prompt:
    """The next turn's prompt: messages, or their texts where the model has no chat template.

    said: the answers to earlier turns
    """
    messages = [{"role": "system", "content": system}] if system else []
    for asked, answer in zip(turns, said, strict=False):
        messages += [{"role": "user", "content": asked}]
        messages += [{"role": "assistant", "content": answer}]
    messages += [{"role": "user", "content": turns[len(said)]}]
    return messages if tokenizer.template else "\n\n".join(one["content"] for one in messages)
