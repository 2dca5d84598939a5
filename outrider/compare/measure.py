"""Runs the comparison. At each round trip it makes a sweep, then all arms on all prompts,
interleaved.

A sweep finds the best fixed setting of an architecture by halving: all settings try a few texts,
and the better half goes on to more.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import NamedTuple

from inference.cost.energy import find_readers
from inference.errors import OutriderError
from outrider.compare.arms import ARCHITECTURES, BASELINE, FUSED, Arm, groups_of
from outrider.compare.compare_options import CompareOptions
from outrider.compare.divergence import Difference, Divergence, first_difference
from outrider.compare.rows import Meters, Reading, ResultRow, marked, summarise
from outrider.compare.testbed import Testbed, testbed
from outrider.models.loading import Checkpoint, find_target
from outrider.options.groups import TargetModelOptions
from outrider.text.completion import Completion, Request


class Cell(NamedTuple):
    """One arm at one round trip, measured."""

    arm: Arm
    round_trip: float  # emulated, seconds
    readings: list[Reading]


STAGES = (1, 2)
"""Texts of each stage. The last stage is repeated until one setting is left."""


@dataclass
class Trial:
    """One arm in a sweep."""

    arm: Arm
    round_trip: float  # emulated, seconds
    had_rivals: bool
    texts: list[Completion] = field(default_factory=list)
    chosen: bool = False

    @property
    def seconds_per_token(self) -> float:
        """Seconds a token over whole texts, prefill included. The sweep decides by this."""
        tokens = sum(len(done.token_ids) for done in self.texts)
        return sum(done.seconds for done in self.texts) / max(1, tokens)

    def record(self) -> dict[str, object]:
        """The trial as plain data for JSON."""
        return {
            **self.arm.record(),
            "rtt_ms": self.round_trip * 1e3,
            "texts": len(self.texts),
            "ms_per_token": self.seconds_per_token * 1e3,
            "chosen": self.chosen,
        }


@dataclass(frozen=True)
class Comparison:
    """Results of one comparison."""

    title: str  # models, device, date, temperature, number of texts
    options: CompareOptions
    rows: list[ResultRow]
    trials: list[Trial]
    texts: list[dict[str, object]]
    account: str
    remarks: list[str]  # limits of these results

    @property
    def has_baseline(self) -> bool:
        return any(_is_baseline(row.arm) for row in self.rows)

    def at(self, rtt_ms: float) -> list[ResultRow]:
        return [row for row in self.rows if row.rtt_ms == rtt_ms]


def compare(options: CompareOptions, profile: str | None) -> Comparison:
    """Run the comparison.

    profile: of --emulate, the device whose times the started target takes
    """
    cells: list[Cell] = []
    trials: list[Trial] = []
    with testbed(options, profile) as ready:
        meters = Meters(find_readers(), ready.started.pid if ready.started else None)
        for trip in options.rtt:
            with ready.bench(trip) as bench:
                chosen = [one for one in ARCHITECTURES if one.name in options.chosen]
                groups = [group for one in chosen for group in groups_of(one, bench)]
                swept = sweep(groups, ready.requests, trip / 1e3)
                trials += swept
                arms = [trial.arm for trial in swept if trial.chosen]
                _say(trip, ", ".join(arm.name for arm in arms))
                cells += _measure(arms, ready.requests, options.num_runs, trip / 1e3, meters)
    return _sum_up(ready, profile, cells, trials)


def sweep(
    groups: Sequence[Sequence[Arm]], requests: Sequence[Request], round_trip: float
) -> list[Trial]:
    """Try all arms and choose one of each group. Returns a trial for each arm.

    All groups take turns, text by text. Each arm has warmed up before.
    """
    left = [[Trial(arm, round_trip, len(group) > 1) for arm in group] for group in groups]
    trials = [trial for group in left for trial in group]
    short = replace(requests[0], max_new_tokens=min(8, requests[0].max_new_tokens))
    for trial in trials:
        trial.arm.complete(short)
    done, stage = 0, 0
    while stage < len(STAGES) or any(len(group) > 1 for group in left):
        more = STAGES[min(stage, len(STAGES) - 1)]
        for index in range(done, done + more):
            for trial in (trial for group in left for trial in group):
                trial.texts.append(trial.arm.complete(requests[index % len(requests)]))
        done, stage = done + more, stage + 1
        left = [
            sorted(group, key=lambda trial: trial.seconds_per_token)[: -(-len(group) // 2)]
            for group in left
        ]
    for group in left:
        group[0].chosen = True
    return trials


def _measure(
    arms: Sequence[Arm], requests: Sequence[Request], runs: int, round_trip: float, meters: Meters
) -> list[Cell]:
    """Run every arm on every prompt, `runs` times, in an order that turns.

    Before each turn every arm makes one token of the prompt. So the prompt's keys are at the target
    for all arms or for none.
    """
    cells = [Cell(arm, round_trip, []) for arm in arms]
    for run in range(runs):
        for request in requests:
            for arm in arms:
                arm.complete(replace(request, max_new_tokens=1))
            turn = (run + request.index) % len(cells)
            for cell in [*cells[turn:], *cells[:turn]]:
                cell.readings.append(meters.read(cell.arm.complete, request))
        _say(round_trip * 1e3, f"run {run + 1} of {runs} done")
    return cells


def _say(rtt_ms: float, words: str) -> None:
    print(f"round trip {rtt_ms:g} ms: {words}", file=sys.stderr)


def _sum_up(
    ready: Testbed, profile: str | None, cells: Sequence[Cell], trials: Sequence[Trial]
) -> Comparison:
    """The rows, each with the differences of its texts."""
    options = ready.options
    divergence = Divergence(_target_checkpoint(options))
    alone = {cell.round_trip: cell.readings for cell in cells if _is_baseline(cell.arm)}
    rows = []
    for cell in cells:
        baseline = alone.get(cell.round_trip)
        differences = _differences(cell.readings, baseline or [], ready.requests, divergence)
        rtt_ms, account = cell.round_trip * 1e3, ready.account
        rows.append(summarise(cell.arm, rtt_ms, cell.readings, baseline, account, differences))
    return Comparison(
        _title(ready),
        options,
        marked(rows),
        list(trials),
        [
            {**cell.arm.record(), "rtt_ms": cell.round_trip * 1e3, **reading.done.record()}
            for cell in cells
            for reading in cell.readings
        ],
        ready.account.words,
        _remarks(ready, profile, cells),
    )


def _is_baseline(arm: Arm) -> bool:
    return arm.architecture.name == BASELINE


def _title(ready: Testbed) -> str:
    draft, prompts, runs = ready.options.pair, len(ready.requests), ready.options.num_runs
    return (
        f"{ready.found.name} for {ready.target.model} on {ready.target.device}; "
        f"{date.today().isoformat()}; temperature {draft.text.temperature:g}; "
        f"{prompts * runs} texts each ({prompts} prompts, {runs} runs)"
    )


def _differences(
    readings: Sequence[Reading],
    alone: Sequence[Reading],
    requests: Sequence[Request],
    divergence: Divergence,
) -> list[Difference]:
    """Divergences of texts from the target-only ones, and how near the two tokens were."""
    found = []
    for ours, theirs in zip(readings, alone, strict=bool(alone)):
        mine, other = ours.done.token_ids, theirs.done.token_ids
        at = first_difference(mine, other)
        if at is None:
            continue
        request = requests[ours.done.index]
        taken, own = (tokens[at] if at < len(tokens) else None for tokens in (mine, other))
        margin = divergence.margin([*request.ids, *other[:at]], request.params, taken, own)
        found.append(Difference(request.index, at, taken, own, margin))
    return found


def _target_checkpoint(options: CompareOptions) -> Checkpoint | None:
    """The target's model, if it is on this machine."""
    draft = options.pair
    if draft.artifact or (options.target_host and not (draft.target_model or draft.model)):
        return None
    try:
        found = find_target(TargetModelOptions(target_model=draft.target_model, model=draft.model))
        return found if isinstance(found, Checkpoint) else None
    except OutriderError:  # a name that only the other machine knows
        return None


def _remarks(ready: Testbed, profile: str | None, cells: Sequence[Cell]) -> list[str]:
    """Remarks that a reader needs to judge the results."""
    options, run = ready.options, {cell.arm.architecture.name for cell in cells}
    remarks = []
    if profile:
        kept = (ready.started and ready.started.emulation) or "it did not say how well it kept them"
        remarks.append(
            f"The target's passes take emulated times ({kept}); drafts, at the target too, and "
            "both programs are this machine's."
        )
    if options.target_host is None:
        remarks.append(
            "Draft and target share this machine's cores: of synchronous rounds, forwards, "
            "acceptance and bytes carry over to other machines; "
            + ("times of the draft do not." if profile else "tokens/s do not.")
        )
    if any(cell.round_trip or options.jitter or options.bandwidth for cell in cells):
        remarks.append("Round trips are emulated by a proxy on this machine, beyond its own.")
    if FUSED in options.chosen and FUSED not in run:
        remarks.append("fused was not run: the target has no draft beside it (--role fused_target)")
    weighed = [one.objective for one in ready.positions if one.weight]
    if weighed:
        remarks.append(f"--cs weighs speed against {weighed[0]}.")
    return remarks
