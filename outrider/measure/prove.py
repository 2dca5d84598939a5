"""`outrider prove`: starts a target as on a first start, makes texts with and without a draft, and
measures its forward passes.

On a Neuron device without an artefact, noise and choices are first compared with the host's, and
the artefact which that builds is served. That part is not yet run on hardware.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from inference.artifact import read_manifest
from inference.backends.neuron_sdk import has_device, instance_family
from inference.command import FAILED, UNEQUAL_DEVICE, say
from inference.draft_thread import take_short_turns
from inference.errors import BadArtifact, Unavailable
from inference.files import write_whole
from inference.flags.group import flags_of
from inference.sampling import SamplingParams
from inference.text import Tokenizer
from outrider.client.client import Client, open_client
from outrider.measure.account import Account
from outrider.measure.arms import client_arm, with_again
from outrider.measure.bench import operating_point
from outrider.measure.environment import environment, start_record
from outrider.measure.figures import ALL, BASELINE, Row, summarise
from outrider.measure.graph_times import SHAPES, GraphTime, fit, profile, time_graphs, times_table
from outrider.measure.journal import Journal, RunRecord, opened, plan_of
from outrider.measure.prove_options import ProveOptions
from outrider.measure.report import Report
from outrider.measure.run import Run, Task
from outrider.measure.sets import PROMPTS
from outrider.money.goal import read_billing
from outrider.options.groups import GoalOptions, PromptOptions, TargetOptions
from outrider.options.network import ConnectionOptions
from outrider.options.roles import SharedClientRole, TargetRole
from outrider.target.spawn import first_start, flag_words, role_environment, started, target_words
from outrider.target.target import load_served
from outrider.text.completion import Request
from outrider.text.prompts import read_prompts

TEMPERATURES = (0.0, 0.7, 1.0)
"""Temperatures of the texts. Above 0 the seed of a text is the number of its prompt."""

REPEATS = 3
"""Texts of each prompt, temperature and arm."""

DRAFTED = "with a draft"


def run_proof(options: ProveOptions) -> int:
    """Prove, print, and write the report. Returns 0 if all texts are equal, else 1."""
    report, times = prove(options, Path(options.out))
    paths = report.write(Path(options.out))
    name, source = report.title, f"Measured by outrider prove on {report.rows[0].device}."
    if (emulated := profile(name, source, times)) is not None:
        paths.append(Path(options.out) / "profile.json")
        write_whole(paths[-1], f"{json.dumps(asdict(emulated), indent=1)}\n")
    print(report.told(), "", *report.sections["Forward passes"], sep="\n")
    say(f"wrote {', '.join(map(str, paths))}")
    return 0 if report.record()["equal"] else FAILED


def prove(options: ProveOptions, out: Path) -> tuple[Report, list[GraphTime]]:
    """Prove a target. Raises the error that ended a text, and BadArtifact for a device that
    computes something else.
    """
    checks = list[str]()
    if options.device.startswith("neuron") and options.artifact is None and has_device():
        checks = _check_device(options, out / "artefact")
        options = options.but(artifact=str(out / "artefact"), model=None, target_model=None)
    take_short_turns()
    texts: Sequence[str] = PROMPTS
    if options.prompt_text is not None:
        texts = read_prompts(PromptOptions(prompt_text=options.prompt_text))
    settings = {name: value for name, value in options.values().items() if name not in _CALL}
    plan = plan_of(settings, {str(number): text for number, text in enumerate(texts)})
    with opened(out, plan, replace_finished=True) as journal:
        with _client(options) as client:
            _make_texts(options, client, texts, journal)
            device = client.target.description.device
            title = f"{client.model} on {device}, drafted by {client.draft}"
        journal.write("end", {"load": environment()["load"]})
        known = journal.known
    times = measured_graphs(options)
    manifest = None if options.artifact is None else read_manifest(Path(options.artifact))
    digest = None if manifest is None else manifest.digest()
    return _report(title, known, times, checks, digest), times


_CALL = ("out", "debug")
"""Flags of a call that change nothing of what is measured."""


@contextmanager
def _client(options: ProveOptions) -> Iterator[Client]:
    """A client of a target that has just started for the first time."""
    words = target_words(options, batch=1, usd_per_hour=options.usd_per_hour)
    of_client = flags_of(SharedClientRole)
    drafting = {name: value for name, value in options.stated().items() if name in of_client}
    with ExitStack() as stack:
        cache = stack.enter_context(TemporaryDirectory(prefix="outrider-"))
        stack.enter_context(first_start(Path(cache)))
        target = stack.enter_context(started("target", words))
        reached = ConnectionOptions(target_host=target.address)
        role = SharedClientRole(connection=reached, **drafting)
        client = stack.enter_context(open_client(role))
        client.wait()
        yield client


def _make_texts(
    options: ProveOptions, client: Client, texts: Sequence[str], journal: Journal
) -> None:
    """Make every prompt's texts at every temperature, by target-only twice and with a draft."""
    billing = read_billing(GoalOptions()).described(client.target.description.usd_per_hour)
    account = Account(billing, whole=True)
    journal.start(start_record(client.target, {"draft": client.draft or ""}, shared=True))
    arms = [client_arm(name, client, account) for name in (BASELINE, DRAFTED)]
    tasks = [
        Task("", f"temperature {temperature:g}", str(number),
             partial(_request, client, _ids(options, client.tokenizer, text), number, temperature,
                     options.max_new_tokens))
        for (number, text), temperature in product(enumerate(texts), TEMPERATURES)
    ]  # fmt: skip
    Run(journal, with_again(arms)).make(tasks, range(REPEATS))


def _ids(options: ProveOptions, tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, chat=options.chat)


def _request(
    client: Client, ids: Sequence[int], number: int, temperature: float, most: int,
    answers: Sequence[str],
) -> Request:  # fmt: skip
    params = SamplingParams(temperature, seed=number)
    return Request(number, "", ids, params, most, client.target.description.stop_ids)


def measured_graphs(options: ProveOptions) -> list[GraphTime]:
    """Times of the target's forward passes, loaded in this process once the served one has ended.
    They are measured with as many rows as the shapes need, unless an artefact has its own.
    """
    stated = options.stated()
    given = {name: stated[name] for name in flags_of(TargetOptions) if name in stated}
    if options.artifact is None:
        given["batch"] = max(rows for rows, _ in SHAPES)
    served = load_served(TargetRole(**given))
    return time_graphs(served.engine.model, served.description.sequence_length)


def _report(
    title: str, run: RunRecord, times: list[GraphTime], checks: Sequence[str], digest: str | None
) -> Report:
    rows, fitted = summarise(run.texts), fit(times)
    sections = {"Forward passes": times_table(times, fitted, instance_family() or "")}
    if checks:
        sections = {"The device": [f"- {line}" for line in checks], **sections}
    return Report(
        title=title,
        verdict=verdict(rows),
        rows=rows,
        run=run,
        remarks=[
            *operating_point(run),
            "Draft and target share this machine, so speed-ups are no promise.",
        ],
        sections=sections,
        data={
            "digest": digest,
            "checks": list(checks),
            "times": [one.record() for one in times],
            "fit": None if fitted is None else fitted._asdict(),
        },
    )


def verdict(rows: Sequence[Row]) -> list[str]:
    """Equality in one line, which decides the exit code, and speed in another."""
    drafted = [row for row in rows if row.arm == DRAFTED]
    each = [row for row in drafted if row.kind != ALL]
    texts, equal = sum(row.compared for row in each), sum(row.equal for row in each)
    whole = drafted[-1]
    told = "faster than" if whole.faster else "slower than" if whole.slower else "not told from"
    return [
        f"{'proved' if equal == texts else 'NOT proved'}: {equal} of {texts} texts equal "
        f"target-only's, at temperatures {', '.join(f'{one:g}' for one in TEMPERATURES)}.",
        f"With a draft {whole.speed_up} of target-only's speed, {told} target-only.",
    ]


def _check_device(options: ProveOptions, out: Path) -> list[str]:
    """Compare a Neuron device's noise and choices with the host's, in a process that gives its
    cores back. Returns the lines that it printed. Raises BadArtifact where something differs, and
    Unavailable with its own reason where it could not be compared.
    """
    given = {"model": options.target_name, "target": instance_family()}
    words = [*flag_words(given), "--out", str(out)]
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "compile.neuron.check", *words],
        env=role_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    last = ""
    for line in process.stderr:  # progress of a build, and the reason of a failure
        last = line.strip() or last
        say(line.rstrip())
    lines = process.communicate()[0].splitlines()
    if process.returncode == UNEQUAL_DEVICE:
        raise BadArtifact(f"the device does not compute what the host does: {lines[-1]}")
    if process.returncode:
        raise Unavailable(f"the device could not be checked: {last.removeprefix('error: ')}")
    return lines
