"""Proves a target: starts it as on a first start, makes texts with and without a draft, and takes
the times of its forwards.

On a Neuron device without an artefact, noise and choices are first compared with the host's, and
the artefact which that builds is served. That part is not yet run on hardware.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event

from inference.artifact import read_manifest
from inference.backends.neuron_sdk import has_device, instance_family
from inference.backends.timed import TimeProfile
from inference.command import say
from inference.draft_thread import take_short_turns
from inference.errors import BadArtifact, Unavailable
from inference.flags.group import flags_of
from inference.planner.profile_files import Subject, read_profile
from inference.sampling import SamplingParams
from inference.text import Tokenizer
from inference.times import Shape
from outrider.client.client import Client, open_client
from outrider.compare.report import environment
from outrider.compare.testbed import PROMPTS
from outrider.options.groups import PromptOptions
from outrider.options.network import ConnectionOptions
from outrider.options.roles import SharedClientRole
from outrider.prove.proof import TEMPERATURES, Proof, TextPair
from outrider.prove.prove_options import ProveOptions
from outrider.target.spawn import first_start, flag_words, role_environment, started, target_words
from outrider.terminal.live_text import silent
from outrider.text.completion import Completion, Request
from outrider.text.prompts import read_prompts


def prove(options: ProveOptions, out: Path) -> Proof:
    """Prove a target. Raises the error that ended a text, and BadArtifact for a device that
    computes something else.

    out: directory for what a check of a Neuron device builds
    """
    checks = list[str]()
    if options.device.startswith("neuron") and options.artifact is None and has_device():
        checks = _check_device(options, out / "artefact")
        options = options.but(artifact=str(out / "artefact"), model=None, target_model=None)
    take_short_turns()
    flags = target_words(options, batch=1, usd_per_hour=options.usd_per_hour)
    of_client = flags_of(SharedClientRole)
    drafting = {name: value for name, value in options.stated().items() if name in of_client}
    with TemporaryDirectory(prefix="outrider-") as cache, first_start(Path(cache)):
        with started("target", flags) as target:
            reached = ConnectionOptions(target_host=target.address)
            role = SharedClientRole(connection=reached, **drafting)
            with open_client(role) as client:
                prompts = _prompts(options, client.tokenizer)
                pairs = [
                    _told(pair) for pair in make_pairs(client, prompts, options.max_new_tokens)
                ]
                model, draft = client.model, client.draft
                device = client.target.description.device
        with started("target", [*flags, "--measure_first"]):
            subject, times = kept_times(Path(cache) / "outrider" / "profiles")
    manifest = None if options.artifact is None else read_manifest(Path(options.artifact))
    return Proof(
        target=model,
        device=device,
        draft=draft,
        digest=None if manifest is None else manifest.digest(),
        environment=environment(),
        checks=checks,
        pairs=pairs,
        subject=subject,
        times=times,
        profile=fit_profile(f"{model} on {device}", subject, times),
        usd_per_hour=options.usd_per_hour,
    )


def make_pairs(client: Client, prompts: Sequence[Sequence[int]], most: int) -> Iterator[TextPair]:
    """Yield every prompt's texts at every temperature. Texts of an odd prompt are first made with
    the draft silent. Each prompt is computed before, so it is equally warm for both. Raises the
    error that ended a text.

    most: tokens of a text
    """
    stop_ids, rows = client.target.description.stop_ids, client.wait()

    def make(number: int, params: SamplingParams, tokens: int, *, alone: bool) -> Completion:
        asked = Request(number, "", prompts[number], params, tokens, stop_ids)
        done = client.complete(asked, silent, Event(), alone=alone).raise_failure()
        if rows is not None:
            rows.settle()  # its last call is not to slow the next text
        return done

    for number, temperature in product(range(len(prompts)), TEMPERATURES):
        params, first = SamplingParams(temperature, seed=number), bool(number % 2)
        make(number, params, 1, alone=True)
        made = {alone: make(number, params, most, alone=alone) for alone in (first, not first)}
        yield TextPair(number, temperature, made[True], made[False])


def _prompts(options: ProveOptions, tokenizer: Tokenizer) -> list[list[int]]:
    """Ids of the prompts."""
    given = options.prompt_text
    texts = PROMPTS if given is None else read_prompts(PromptOptions(prompt_text=given))
    return [tokenizer.encode(text, chat=options.chat) for text in texts]


def _told(pair: TextPair) -> TextPair:
    """The pair, after a line on stderr."""
    same = "equal" if pair.differs_at is None else f"DIFFERENT at token {pair.differs_at}"
    say(
        f"prompt {pair.prompt}, temperature {pair.temperature:g}: {same}, {pair.speed:.2f} of "
        "target-only's speed"
    )
    return pair


def _check_device(options: ProveOptions, out: Path) -> list[str]:
    """Compare a Neuron device's noise and choices with the host's, in a process that gives its
    cores back. Returns the lines that it printed. Raises BadArtifact where something differs.
    """
    given = {"model": options.target_name, "target": instance_family()}
    words = [*flag_words(given), "--out", str(out)]
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "compile.neuron.check", *words],
        check=False,
        env=role_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        raise BadArtifact(f"the device does not compute what the host does: {done.stdout.strip()}")
    return done.stdout.splitlines()


def kept_times(directory: Path) -> tuple[Subject, dict[Shape, float]]:
    """The times that a target has kept in this cache. Raises Unavailable where it kept none."""
    for path in sorted(directory.glob("target-*.json")):
        subject, times = read_profile(path)
        if subject.part == "target":
            return subject, times
    raise Unavailable(f"the target kept no times in {directory}")


def fit_profile(name: str, subject: Subject, times: Mapping[Shape, float]) -> TimeProfile:
    """The profile of these times, for --emulate: the longer of the weights' time and the nodes'.

    The time of a node is the one that comes nearest to all measured forwards.

    times: seconds by rows and by nodes of each row; the narrowest forward gives the weights' time
    """
    least = times[min(times)]
    shapes = {(rows * nodes): seconds for (rows, nodes), seconds in times.items()}
    slopes = [seconds / nodes for nodes, seconds in shapes.items()]
    errors = {slope: _error(least, slope, shapes) for slope in slopes}
    node = min(errors, key=errors.__getitem__)
    worst = max(abs(max(least, n * node) / seconds - 1) for n, seconds in shapes.items())
    return TimeProfile(
        name,
        f"Measured by outrider prove on {subject.device}, {subject.dtype}, {subject.threads} "
        f"threads, at a context of {subject.context} slots.",
        f"That context costs nothing, and rows cost as nodes do. A measured forward is off by "
        f"{worst:.0%} at most.",
        pass_seconds=least,
        slot_seconds=0.0,
        node_seconds=node,
        node_slot_seconds=0.0,
        rows=tuple(sorted({rows for rows, _ in times})),
        nodes=tuple(sorted({nodes for _, nodes in times})),
        slot_step=1,
    )


def _error(least: float, node: float, shapes: Mapping[int, float]) -> float:
    """Sum of squared logarithms of computed over measured seconds."""
    return sum(math.log(max(least, n * node) / seconds) ** 2 for n, seconds in shapes.items())
