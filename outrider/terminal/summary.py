"""Formats tables, a run's summary for stderr, and its profile as CSV and JSON."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from inference.cost.billing import price_words
from inference.files.writing import write_whole
from inference.planner.prices import Usage
from outrider.money import Goal, RunBudget
from outrider.options.roles import TextRole
from outrider.text.completion import Completion
from outrider.text.pieces import gaps_between


def aligned(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Format a table as lines, header first, with every column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return [
        "  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True))
        for line in (heads, *rows)
    ]


def write_csv(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Write one line per record. A nested mapping becomes one column per entry."""
    flat = [_columns(record) for record in records]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(head for line in flat for head in line)))
        writer.writeheader()
        writer.writerows(flat)


def _columns(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            columns |= _columns(value, f"{prefix}{name}.")
        else:
            columns[prefix + name] = value
    return columns


PROFILE = "outrider-profile.json"
"""Name of the profile's file with the records of all requests."""


def summary(completions: Sequence[Completion], wall_seconds: float) -> str:
    """Format the final report of a run: summed counts, and rates as ratios of sums."""
    tokens = sum(len(done.token_ids) for done in completions)
    lines = [
        f"prompt tokens {sum(done.prompt_tokens for done in completions)}, generated {tokens}",
        *_forwards(completions, tokens),
        *_draft(completions, tokens),
        _time(completions, wall_seconds),
        *_waits(completions),
        *_bytes(completions, tokens),
    ]
    spent = [done for done in completions if done.finish_reason == "spent"]
    if spent:
        never = sum(not done.token_ids for done in spent)
        lines.append(
            f"stopped by --max_usd: {len(spent)} of {len(completions)} texts"
            + f", {never} of them before they started" * bool(never)
        )
    devices = sorted({done.device for done in completions if done.device})
    lines += [f"target on {device}" for device in devices]
    return "\n".join([*lines, *_before_the_draft(completions), *_against_baseline(completions)])


def _time(completions: Sequence[Completion], wall_seconds: float) -> str:
    """Format the line about time: that of the run, or the sum over requests if the run includes
    target-only requests for comparison.
    """
    compared = any(done.baseline is not None for done in completions)
    tokens = sum(len(done.token_ids) for done in completions)
    seconds = sum(done.seconds for done in completions) if compared else wall_seconds
    total = f" of {wall_seconds:.2f} s with target-only runs" * compared
    return f"time {seconds:.2f} s{total}, {tokens / seconds if seconds else 0:.1f} tokens/s"


def _waits(completions: Sequence[Completion]) -> list[str]:
    """Format the line about a reader's waiting times: for the first piece of output, and between
    pieces.
    """
    first = [done.time_to_first_token for done in completions if done.arrivals]
    if not first:
        return []
    gaps = gaps_between(done.arrivals for done in completions)
    return [
        f"first token after {median(first):.3f} s{' (median)' * (len(first) > 1)}; gaps between "
        f"pieces {gaps.p50 * 1e3:.0f} ms (p50), {gaps.p99 * 1e3:.0f} ms (p99), "
        f"{gaps.largest * 1e3:.0f} ms (max)"
    ]


def account(completions: Sequence[Completion], budget: RunBudget, goal: Goal) -> str:
    """Format the costs of a run: cost per token with the source of the prices, energy, and whether
    --min_tps was met. Excludes target-only requests for comparison.
    """
    tokens, billing = sum(len(done.token_ids) for done in completions), budget.billing
    if not tokens:
        return f"cost ${budget.spent:.6f}" if billing.priced else ""
    figures, lines = billing.figures(tokens, budget.usage), list[str]()
    if billing.priced:
        missing = figures["total_cost"]
        bound = "" if missing.value is not None else f", at least ({missing.source})"
        rate = price_words("total_cost", budget.spent / tokens)
        lines.append(f"cost ${budget.spent:.6f}, {rate}{bound}")
        usage = Usage()
        for done in completions:
            usage = usage.plus(done.usage_of_forwards)
        if usage.wall:  # synchronous rounds make fewer forward passes
            rate = price_words("total_cost", (budget.price(usage) or 0.0) / tokens)
            lines.append(f"counting only the target's forward passes {rate}")
        lines.append(f"prices: {billing.source}")
    if billing.draft_watts is not None or billing.target_watts is not None:
        name, whose = "energy_total", ""
        if billing.target_watts is None:
            name, whose = "draft_energy", " of the draft"
        elif billing.draft_watts is None:
            name, whose = "target_energy", " of the target"
        joules = figures[name]
        assert joules.value is not None, "its power is known"
        lines.append(f"energy{whose} {price_words(name, joules.value)} ({joules.source})")
    if goal.min_tps is not None:  # over the whole run, prefill included
        speed = tokens / sum(done.seconds for done in completions)
        met = "met" if speed >= goal.min_tps else "missed"
        lines.append(f"--min_tps {met}: measured {speed:.4g} tokens/s, wanted {goal.min_tps:g}")
    return "\n".join(lines)


def _forwards(completions: Sequence[Completion], tokens: int) -> list[str]:
    forwards, lone, drafted, accepted = (
        sum(done.record()[name] for done in completions)
        for name in ("forwards", "lone_forwards", "num_draft_tokens", "num_accepted_tokens")
    )
    if not forwards:
        return []
    passes = f"forward passes {forwards}, {tokens / forwards:.2f} tokens each (acceptance length)"
    if not drafted:
        return [passes]
    with_candidates = 1 + accepted / max(forwards - lone, 1)
    proposers = Counter[str]()
    for done in completions:
        proposers.update(done.accepted_by)
    by = ", ".join(f"{name} {count}" for name, count in proposers.most_common())
    return [
        f"{passes}; {lone} of them without candidates, {with_candidates:.2f} tokens in the others",
        f"candidates computed {drafted}, accepted {accepted} ({accepted / drafted:.1%})"
        + f": by {by}" * (len(proposers) > 1),
    ]


def _draft(completions: Sequence[Completion], tokens: int) -> list[str]:
    calls = sum(done.draft_calls for done in completions)
    seconds = sum(done.draft_seconds for done in completions)
    if not calls or not tokens:
        return []
    return [f"draft calls {calls}, {calls / tokens:.2f} a token, {seconds:.2f} s"]


def _bytes(completions: Sequence[Completion], tokens: int) -> list[str]:
    up, down, sent, got = (
        sum(getattr(done.traffic, name) for done in completions)
        for name in ("bytes_up", "bytes_down", "messages_up", "messages_down")
    )
    if not up or not tokens:
        return []
    return [
        f"bytes a token {up / tokens:.0f} up, {down / tokens:.0f} down; messages "
        f"{sent / tokens:.2f} up, {got / tokens:.2f} down"
    ]


def _before_the_draft(completions: Sequence[Completion]) -> list[str]:
    waits = [done.loading_seconds for done in completions if done.loading_seconds is not None]
    if not waits:
        return []
    texts = "this text was" if len(completions) == 1 else f"{len(waits)} texts were"
    return [f"the draft was still loading after {max(waits):.1f} s: {texts} generated without it"]


def _against_baseline(completions: Sequence[Completion]) -> list[str]:
    pairs = [(done, done.baseline) for done in completions if done.baseline is not None]
    if not pairs:
        return []
    same = sum(done.token_ids == baseline.token_ids for done, baseline in pairs)
    cut = sum(not done.whole for done, _ in pairs)
    ours, theirs = (sum(run.seconds for run in side) for side in zip(*pairs, strict=True))
    forwards, alone = (
        sum(run.traffic.forwards for run in side) for side in zip(*pairs, strict=True)
    )
    drafted = any(done.drafted for done, _ in pairs)
    gain = f"speed-up {theirs / ours:.2f}" if drafted else "no draft took part"
    return [
        f"target-only, same prompts and seeds: {alone} forward passes instead of {forwards}, "
        f"{theirs:.2f} s instead of {ours:.2f} s: {gain}",
        f"identical texts: {same} of {len(pairs)}"
        + f", {cut} of them up to where they stopped" * bool(cut),
    ]


def write_options(directory: Path, options: TextRole, completions: Sequence[Completion]) -> Path:
    """Write outrider-options.json: every option, including a randomly drawn seed. Passed to
    --config, the file reproduces the same output.
    """
    if completions:
        options = options.replace(seed=completions[0].seed - completions[0].index)
    unset = ("config", "profile")
    items = options.values().items()
    values = {name: value for name, value in items if value is not None and name not in unset}
    path = directory / "outrider-options.json"
    write_whole(path, json.dumps(values, indent=1) + "\n")
    return path


def write_profile(directory: Path, completions: Sequence[Completion]) -> list[Path]:
    """Write outrider-profile.json with everything, and outrider-profile.csv with the numeric
    columns and the target's device, one row per request.
    """
    directory.mkdir(parents=True, exist_ok=True)
    paths = [directory / PROFILE, directory / "outrider-profile.csv"]
    records = [done.record() for done in completions]
    write_whole(paths[0], json.dumps(records, indent=1) + "\n")
    rows: list[dict[str, object]] = [
        {key: value for key, value in record.items() if isinstance(value, int | float)}
        for record in records
    ]
    for row, done in zip(rows, completions, strict=True):
        row["basepassesseconds"] = done.baseline.seconds if done.baseline else ""
        row["speedup"] = done.speedup or ""
        row["device"] = done.device
    write_csv(paths[1], rows)
    return paths
