"""`outrider bench`: every prompt of some sets by target-only and by presets, in turn."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path

from inference.draft_thread import take_short_turns
from inference.errors import InvalidRequest
from inference.text import Tokenizer
from outrider.client.client import Client, open_client
from outrider.draft_methods import find_draft
from outrider.measure.account import Account
from outrider.measure.arms import Arm, client_arm, with_again
from outrider.measure.bench_options import BenchOptions
from outrider.measure.environment import environment, over_link, start_record
from outrider.measure.figures import AGAIN, BASELINE, COSTS, Row, summarise
from outrider.measure.journal import Journal, RunRecord, opened, plan_of
from outrider.measure.link import LinkShape
from outrider.measure.report import Report
from outrider.measure.run import Run, Task
from outrider.measure.sandbox import check_sandbox
from outrider.measure.scoring import score
from outrider.measure.sets import Item
from outrider.money.goal import read_billing
from outrider.target.spawn import first_start, started, target_words
from outrider.text.completion import Request
from outrider.text.parameters import Parameters
from outrider.text.prompts import Prompt, make_request

WARM_UP = "Name three colours."
"""The prompt that every arm answers before anything counts."""

TOKEN_SECONDS = 0.03
"""Seconds a token that the estimate before a run assumes."""

MIN_PROMPTS, MIN_TOKENS = 30, 128
"""Prompts of a kind, and the limit of their texts, from which a figure may be claimed."""

_ALSO_OF_TARGET = ("backend", "batch", "emulate", "measure_first", "usd_per_hour")


Beside = Callable[[Client, list[Arm]], AbstractContextManager[list[Arm]]]
"""Adds arms of other engines to our own."""


def run_bench(
    options: BenchOptions, beside: Beside = lambda client, arms: nullcontext(arms)
) -> int:
    """Make the texts that the run lacks, and write and print its report in any case."""
    items, out = options.items(), Path(options.out)
    if options.run_code:
        check_sandbox()
    if not (options.yes or options.names_prompts or _confirm(options, items)):
        return 1
    take_short_turns()
    prompts = {f"{one.set}/{one.kind}/{one.name}": one for one in items}
    with opened(out, plan_of(options.settings, prompts)) as journal:
        try:
            if not journal.known.ends:
                _make_texts(options, items, journal, beside)
                journal.write("end", {"load": environment()["load"]})
        finally:  # a run that was ended has a report of its texts, too
            if journal.known.texts:
                report = _report(journal.known)
                report.write(out)
                print(report.told())
    return 0


def _confirm(options: BenchOptions, items: Sequence[Item]) -> bool:
    """Print what would run, and ask. Raises InvalidRequest where there is no terminal."""
    print(_summary(options, items), flush=True)
    if not sys.stdin.isatty():
        raise InvalidRequest("no terminal to ask on: start it with `outrider bench --yes`")
    return input("run this? [y/N] ").strip().lower() in ("y", "yes")


def _summary(options: BenchOptions, items: Sequence[Item]) -> str:
    """Describe a run in three lines."""
    kinds = Counter(item.kind for item in items)
    drafted = (preset or options.draft for preset in options.presets or (options.preset,))
    arms = [BASELINE, AGAIN, *drafted]
    texts = sum(len(item.turns) for item in items) * len(arms) * options.num_runs
    tokens = texts * options.text.max_new_tokens
    return "\n".join(
        (
            f"prompts  {', '.join(options.sets)}: {len(items)} ("
            + ", ".join(f"{kind} {count}" for kind, count in kinds.items())
            + ")",
            f"texts    {texts}: each turn by {', '.join(arms)}, up to "
            f"{options.text.max_new_tokens} tokens",
            f"time     up to {tokens * TOKEN_SECONDS / 60:.0f} min at "
            f"{TOKEN_SECONDS * 1000:.0f} ms a token; --samples N takes N prompts of each kind",
        )
    )


def _make_texts(
    options: BenchOptions, items: Sequence[Item], journal: Journal, beside: Beside
) -> None:
    """Make the texts that a run lacks. With --fresh each repetition starts both ends anew."""
    every = range(options.num_runs)
    for repeats in [[one] for one in every] if options.fresh else [every]:
        if any(key.repeat > repeats[-1] for key in journal.known.texts):
            continue  # a later start has begun
        with ExitStack() as stack:
            if options.fresh:
                stack.enter_context(first_start(Path(options.out).absolute() / "cache"))
            client, ours = stack.enter_context(_arms(options, journal))
            arms = stack.enter_context(beside(client, ours))
            run = Run(journal, arms, options.rtt)
            if not options.fresh:
                run.warm_up(make_request(client, _prompt([WARM_UP], [], None, client.tokenizer),
                                         Parameters(max_tokens=64)))  # fmt: skip
            takes_schemas = client.target.description.rules
            run.make(
                [
                    _task(options, client, index, item)
                    for index, item in enumerate(items)
                    if item.schema is None or takes_schemas
                ],
                repeats,
            )


@contextmanager
def _arms(options: BenchOptions, journal: Journal) -> Iterator[tuple[Client, list[Arm]]]:
    """Start a target unless one is named, load all drafts, and note the start. Yields the client
    that makes requests, and the arms.
    """
    with ExitStack() as stack:
        connection = options.connection
        if not options.elsewhere:
            more = {"batch": 1} | options.stated()  # one row unless --batch says otherwise
            words = target_words(options, **{name: more.get(name) for name in _ALSO_OF_TARGET})
            target = stack.enter_context(started("target", words))
            connection = connection.but(target_host=target.address)
        shape = LinkShape(delay_ms=options.rtt / 2, mbit=options.bandwidth)
        reached = stack.enter_context(over_link(connection, shape))
        clients, drafts = dict[str, Client](), dict[str, str]()
        for name, role in options.clients(reached):
            clients[name] = stack.enter_context(open_client(role, is_local=connection.is_local))
            found = None if role.method is None else find_draft(role)
            drafts[name] = "" if found is None else found.fingerprint()
        for client in clients.values():
            client.wait()
        first = next(iter(clients.values()))
        billing = read_billing(options.goal).described(first.target.description.usd_per_hour)
        account = Account(billing, not options.elsewhere, bool(options.emulate))
        journal.start(start_record(first.target, drafts, shared=first.shares_device))
        arms = [client_arm(name, client, account) for name, client in clients.items()]
        yield first, with_again([client_arm(BASELINE, first, account), *arms])


def _task(options: BenchOptions, client: Client, index: int, item: Item) -> Task:
    text = options.text
    parameters = Parameters(
        max_tokens=text.max_new_tokens,
        temperature=text.temperature,
        top_k=text.top_k,
        top_p=text.top_p,
        seed=text.seed + index,
        schema=item.schema,
    )

    def request(answers: Sequence[str]) -> Request:
        prompt = _prompt(item.turns, answers, item.system, client.tokenizer)
        return make_request(client, prompt, parameters, index)

    scored = partial(score, item, run_code=options.run_code)
    return Task(*item[:3], request, len(item.turns), scored)


def _prompt(
    turns: Sequence[str], answers: Sequence[str], system: str | None, tokenizer: Tokenizer
) -> Prompt:
    """The next turn's prompt: messages, or their texts where the model has no chat template."""
    messages = [{"role": "system", "content": system}] if system else []
    for asked, answer in zip(turns, answers, strict=False):
        messages += [{"role": "user", "content": asked}]
        messages += [{"role": "assistant", "content": answer}]
    messages += [{"role": "user", "content": turns[len(answers)]}]
    return messages if tokenizer.template else "\n\n".join(one["content"] for one in messages)


def _report(run: RunRecord) -> Report:
    models = run.starts[0]["models"]
    drafts = [name for name in models if name not in ("target", "type", "device")]
    rows = summarise(run.texts, drafts, by_start=run.plan["settings"]["fresh"])
    return Report(
        title=f"{', '.join(drafts)} on {models['target']}, {models['device']}",
        verdict=[],
        rows=rows,
        run=run,
        remarks=[*operating_point(run), *_remarks(run, rows)],
    )


def operating_point(run: RunRecord) -> Iterator[str]:
    """Yield machine, load and link in words, with the link in forward passes of the target."""
    where = run.starts[0]["environment"]
    instructions = ", ".join(where["instructions"]) or "unknown instructions"
    loads = [*(start["environment"]["load"] for start in run.starts)]
    loads += [end["load"] for end in run.ends]
    yield (
        f"{where['processor']}, {where['cpus']} CPUs, {instructions}; load at each start and at "
        f"the end {', '.join(f'{load[0]:.1f}' for load in loads if load)}"
    )
    alone = [text for key, text in run.texts.items() if key.arm == BASELINE]
    forwards = sum(text["forwards"] for text in alone)
    seconds = sum(text["target_seconds"] for text in alone) / max(forwards, 1)
    for trip in (start["round_trip"] for start in run.starts):
        spent = f", {trip / seconds:.2f} forward passes of the target ({seconds * 1e3:.1f} ms)"
        yield f"round trip {trip * 1e3:.3g} ms{spent if seconds else ''}"
    libraries = {name: where[name] for name in ("outrider", "torch", "transformers", "grpcio")}
    commits = dict.fromkeys(start["environment"]["commit"] for start in run.starts)
    yield ", ".join(f"{name} {version}" for name, version in libraries.items() if version) + (
        f"; commit {', then '.join(commits)}"
    )


def _remarks(run: RunRecord, rows: Sequence[Row]) -> Iterator[str]:
    """Yield what a reader needs to judge the figures."""
    settings, prompts = run.plan["settings"], run.plan["prompts"]
    most = settings["max_new_tokens"]
    counts = sorted(Counter(kind for _, kind, _ in {key[:3] for key in run.texts}).items())
    least = MIN_PROMPTS if most >= MIN_TOKENS else 1 + len(prompts)
    if few := ", ".join(f"{count} {kind}" for kind, count in counts if count < least):
        yield (
            f"Too few for a claim: {few} prompts of up to {most} tokens; {MIN_PROMPTS} x "
            f"{MIN_TOKENS} are needed."
        )
    if run.starts[0]["shared"]:
        yield "Draft and target share this machine: their speed is not that of two machines."
    if any("/code/" in name for name in prompts):
        yield "Code as in HumanEval flatters copies: 64 % of an answer repeats its prompt."
    if lacking := len(prompts.keys() - {key.prompt for key in run.texts}):
        why = "these models cannot take them" if run.ends else "the same command continues it"
        yield f"{lacking} of {len(prompts)} prompts are left out: {why}."
    if settings["emulate"]:
        yield f"The target's forward passes take the times of {settings['emulate']}."
    for name in COSTS[0], COSTS[2]:
        figures = [row.costs[name].median for row in rows]
        sources = [figure.source for figure in figures if figure.value is None]
        if reasons := dict.fromkeys(part for one in sources for part in one.split("; ")):
            yield f"{name} is unavailable: {'; '.join(reasons)}."
