"""Runs the comparison: at each round trip all arms on all prompts, interleaved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import NamedTuple

from inference.command import say
from inference.cost.energy import find_readers
from outrider.measure.arms import ARCHITECTURES, BASELINE, FUSED, Arm
from outrider.measure.compare_options import CompareOptions
from outrider.measure.rows import Reading, ResultRow, marked, read_meters, summarise
from outrider.measure.testbed import Testbed, testbed
from outrider.text.completion import Request


class Cell(NamedTuple):
    """One arm at one round trip, measured."""

    arm: Arm
    rtt_ms: float  # emulated
    readings: list[Reading]


@dataclass(frozen=True)
class Comparison:
    """Results of one comparison."""

    title: str  # models, device, date, temperature, number of texts
    options: CompareOptions
    rows: list[ResultRow]
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
    with testbed(options, profile) as ready:
        for trip in options.rtt:
            with ready.bench(trip) as bench:
                chosen = [one for one in ARCHITECTURES if one.name in options.chosen]
                arms = [arm for one in chosen for arm in one.arms(bench)]
                _say(trip, ", ".join(arm.name for arm in arms))
                cells += _measure(arms, ready.requests, options.num_runs, trip)
    return _sum_up(ready, profile, cells)


def _measure(
    arms: Sequence[Arm], requests: Sequence[Request], runs: int, rtt_ms: float
) -> list[Cell]:
    """Run every arm on every prompt, `runs` times, in an order that turns. Each has warmed up.

    Before each turn every arm makes one token of the prompt. So the prompt's keys are at the target
    for all arms or for none.
    """
    cells, readers = [Cell(arm, rtt_ms, []) for arm in arms], find_readers()
    for arm in arms:
        arm.complete(replace(requests[0], max_new_tokens=min(8, requests[0].max_new_tokens)))
    for run in range(runs):
        for request in requests:
            for arm in arms:
                arm.complete(replace(request, max_new_tokens=1))
            turn = (run + request.index) % len(cells)
            for cell in [*cells[turn:], *cells[:turn]]:
                cell.readings.append(read_meters(readers, cell.arm.complete, request))
        _say(rtt_ms, f"run {run + 1} of {runs} done")
    return cells


def _say(rtt_ms: float, words: str) -> None:
    say(f"round trip {rtt_ms:g} ms: {words}")


def _sum_up(ready: Testbed, profile: str | None, cells: Sequence[Cell]) -> Comparison:
    alone = {cell.rtt_ms: cell.readings for cell in cells if _is_baseline(cell.arm)}
    rows = [
        summarise(cell.arm, cell.rtt_ms, cell.readings, alone.get(cell.rtt_ms), ready.account)
        for cell in cells
    ]
    return Comparison(
        _title(ready),
        ready.options,
        marked(rows),
        [
            {**cell.arm.record(), "rtt_ms": cell.rtt_ms, **reading.done.record()}
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
    if any(cell.rtt_ms or options.bandwidth for cell in cells):
        remarks.append("Round trips are emulated by a proxy on this machine, beyond its own.")
    if FUSED in options.chosen and FUSED not in run:
        remarks.append("fused was not run: the target has no draft beside it (--role fused_target)")
    weighed = [one.objective for one in ready.positions if one.weight]
    if weighed:
        remarks.append(f"--cs weighs speed against {weighed[0]}.")
    return remarks
