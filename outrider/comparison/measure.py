"""The comparison itself: at each round trip a sweep, then all architectures on all prompts,
interleaved, and their rows.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from inference.cost.energy_readers import find_readers
from inference.errors import OutriderError
from outrider.comparison.accounting import Account
from outrider.comparison.arms import (
    ARCHITECTURES,
    BASELINE,
    CHAIN,
    FUSED,
    FUSED_LOCAL,
    LOCAL,
    TREE,
    Arm,
    Bench,
    arms_of,
)
from outrider.comparison.gauges import Gauges, Reading
from outrider.comparison.margins import Difference, Margins, first_difference
from outrider.comparison.options import CompareOptions
from outrider.comparison.prediction import Costs, Network, acceptance, costs_of, host_of
from outrider.comparison.rig import Rig, rig
from outrider.comparison.rows import Row, summarise
from outrider.comparison.sweep import Trial, sweep
from outrider.completion import Completion, Request
from outrider.models import Checkpoint, find_checkpoint
from outrider.options import Options

BITS_PER_MBIT = 1e6


class Cell(NamedTuple):
    """One arm at one round trip, measured."""

    arm: Arm
    round_trip: float  # emulated, seconds
    readings: list[Reading]


@dataclass(frozen=True)
class Comparison:
    """What one comparison found.

    costs: of a round, by architecture and setting, as the sweep tells: what predictions start from.
    measured: the same by round trip (ms) and architecture, as the rows tell.  acceptance: of the
    longest chain that was tried.  coverage: of the largest tree. remarks: what a reader must know.
    """

    rows: list[Row]
    trials: list[Trial]
    costs: dict[tuple[str, str], Costs]
    measured: dict[tuple[float, str], Costs]
    acceptance: float | None
    coverage: float | None
    texts: list[dict[str, object]]
    account: str
    remarks: list[str]

    @property
    def device(self) -> str:
        return next((row.device for row in self.rows if row.device), "this process")

    @property
    def has_baseline(self) -> bool:
        return any(row.architecture == BASELINE for row in self.rows)


def compare(options: CompareOptions, profile: str | None, account: Account) -> Comparison:
    """Run it. profile: of --emulate, the device whose times the target that is started takes."""
    cells: list[Cell] = []
    trials: list[Trial] = []
    with rig(options, profile) as ready:
        gauges = Gauges(find_readers(), ready.started.pid if ready.started else None)
        for trip in options.rtt:
            with ready.bench(trip) as bench:
                swept = _sweep(options, bench, ready.requests, trip / 1e3)
                trials += swept
                arms = [trial.arm for trial in swept if trial.chosen]
                cells += _measure(arms, ready.requests, options.num_runs, trip / 1e3, gauges)
    return _sum_up(options, ready, profile, account, cells, trials)


def _sweep(
    options: CompareOptions, bench: Bench, requests: Sequence[Request], round_trip: float
) -> list[Trial]:
    """Trials of every chosen architecture that this bench can run, one of each chosen."""
    groups = [
        arms_of(architecture, bench)
        for architecture in ARCHITECTURES
        if architecture.name in options.chosen
    ]
    trials = sweep([group for group in groups if group], requests, round_trip)
    chosen = ", ".join(
        f"{trial.arm.name} {trial.arm.setting}".strip() for trial in trials if trial.chosen
    )
    print(f"round trip {round_trip * 1e3:g} ms: {chosen}", file=sys.stderr)
    return trials


def _measure(
    arms: Sequence[Arm], requests: Sequence[Request], runs: int, round_trip: float, gauges: Gauges
) -> list[Cell]:
    """Every arm on every prompt, `runs` times, in an order that turns. Before each turn every arm
    makes one token of it, so that no arm finds the prompt's keys at the target and another one does
    not.
    """
    cells = [Cell(arm, round_trip, []) for arm in arms]
    for run in range(runs):
        for request in requests:
            for arm in arms:
                arm.complete(replace(request, max_new_tokens=1))
            turn = (run + request.index) % len(cells)
            for cell in [*cells[turn:], *cells[:turn]]:
                cell.readings.append(gauges.read(cell.arm.complete, request))
        print(f"round trip {round_trip * 1e3:g} ms: run {run + 1} of {runs} done", file=sys.stderr)
    return cells


def _sum_up(
    options: CompareOptions,
    ready: Rig,
    profile: str | None,
    account: Account,
    cells: Sequence[Cell],
    trials: Sequence[Trial],
) -> Comparison:
    """Rows, each with its prediction and with the differences of its texts."""
    costs = _costs(trials, options.rtt[0] / 1e3)
    margins = Margins(_target_checkpoint(options))
    rows = []
    for cell in cells:
        alone = next(
            (
                other.readings
                for other in cells
                if other.round_trip == cell.round_trip and other.arm.name == BASELINE
            ),
            None,
        )
        known = costs.get((cell.arm.name, cell.arm.setting))
        time = cell.arm.architecture.time
        link = network(options, cell.round_trip)
        predicted = None if known is None or time is None else time(known, link)
        differences = (
            [] if alone is None else _differences(cell.readings, alone, ready.requests, margins)
        )
        rows.append(
            summarise(
                cell.arm,
                cell.round_trip * 1e3,
                cell.readings,
                alone,
                account,
                differences,
                predicted,
            )
        )
    return Comparison(
        rows=rows,
        trials=list(trials),
        costs=costs,
        measured=_measured(cells),
        acceptance=_acceptance(trials, CHAIN),
        coverage=_acceptance(trials, TREE),
        texts=[_record(cell, reading.done) for cell in cells for reading in cell.readings],
        account=account.words,
        remarks=_remarks(options, ready, profile, cells),
    )


def network(options: CompareOptions, round_trip: float) -> Network:
    """The emulated link; jitter counts with its mean, once each way."""
    byte_time = 8 / (options.bandwidth * BITS_PER_MBIT) if options.bandwidth else 0.0
    return Network(round_trip + options.jitter / 1e3, byte_time)


def _costs(trials: Sequence[Trial], first: float) -> dict[tuple[str, str], Costs]:
    """Of every setting from all its sweep runs. What the programs add comes from the runs at the
    first round trip: of one's own where no round crosses the network, else of all that do.
    """
    by_setting: dict[tuple[str, str], list[Completion]] = {}
    crossing = [
        done
        for trial in trials
        if trial.arm.architecture.crosses and trial.round_trip == first
        for done in trial.texts
    ]
    for trial in trials:
        by_setting.setdefault((trial.arm.name, trial.arm.setting), []).extend(trial.texts)
    costs: dict[tuple[str, str], Costs] = {}
    for trial in trials:
        if trial.arm.architecture.time is None:
            continue
        key = (trial.arm.name, trial.arm.setting)
        host = (
            host_of(crossing, first)
            if trial.arm.architecture.crosses
            else host_of(by_setting[key], 0.0)
        )
        known = costs_of(by_setting[key], host)
        if known is not None:
            costs[key] = known
    return costs


def _measured(cells: Sequence[Cell]) -> dict[tuple[float, str], Costs]:
    """Of the rounds of arms with a closed form, each at its round trip."""
    costs: dict[tuple[float, str], Costs] = {}
    for cell in cells:
        if cell.arm.architecture.time is None:
            continue
        done = [reading.done for reading in cell.readings]
        known = costs_of(
            done, host_of(done, cell.round_trip if cell.arm.architecture.crosses else 0.0)
        )
        if known is not None:
            costs[cell.round_trip * 1e3, cell.arm.name] = known
    return costs


def _acceptance(trials: Sequence[Trial], name: str) -> float | None:
    """Of the last setting of this architecture, the longest or widest of those that are tried,
    in all its sweep runs.
    """
    settings = [trial.arm.setting for trial in trials if trial.arm.name == name]
    texts = [
        done
        for trial in trials
        if trial.arm.name == name and trial.arm.setting == settings[-1]
        for done in trial.texts
    ]
    return acceptance(texts) if texts else None


def _differences(
    readings: Sequence[Reading],
    alone: Sequence[Reading],
    requests: Sequence[Request],
    margins: Margins,
) -> list[Difference]:
    """Where texts part from the target-only ones, and how near the two tokens were."""
    by_index = {request.index: request for request in requests}
    found = []
    for ours, theirs in zip(readings, alone, strict=True):
        mine, other = ours.done.token_ids, theirs.done.token_ids
        at = first_difference(mine, other)
        if at is None:
            continue
        request = by_index[ours.done.index]
        taken, own = (tokens[at] if at < len(tokens) else None for tokens in (mine, other))
        margin = margins.margin([*request.ids, *other[:at]], request.params, taken, own)
        found.append(Difference(request.index, at, taken, own, margin))
    return found


def _target_checkpoint(options: CompareOptions) -> Checkpoint | None:
    """The target's model where it is on this machine."""
    if options.artifact or (options.target_host and not options.target_model):
        return None
    try:
        return find_checkpoint(Options(target_model=options.target_model), "target")
    except OutriderError:  # a name that only the other machine knows
        return None


def _remarks(
    options: CompareOptions, ready: Rig, profile: str | None, cells: Sequence[Cell]
) -> list[str]:
    """What a reader must know of how this came about."""
    remarks = []
    if profile:
        kept = next(
            (line.strip() for line in reversed(ready.said) if line.startswith("emulated")),
            "it did not say whether it kept its times",
        )
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
    run = {cell.arm.name for cell in cells}
    remarks += [
        f"{name} was not run: {_REASONS.get(name, 'it cannot run here')}."
        for name in options.chosen
        if name not in run
    ]
    if BASELINE not in run:
        remarks.append(
            "No speed-up is given: target-only was not run here, and there is nothing else that it "
            "could be measured against."
        )
    return remarks


_REASONS = {
    FUSED: "the target has no draft beside it (--role fused_target)",
    LOCAL: "the target's model is not in this process (--local)",
    FUSED_LOCAL: "the target's model is not in this process (--local)",
}


def _record(cell: Cell, done: Completion) -> dict[str, object]:
    return {
        "architecture": cell.arm.name,
        "setting": cell.arm.setting,
        "rtt_ms": cell.round_trip * 1e3,
        **done.record(),
    }
