"""What the user sees: text while it is made, the final report, JSON lines, and the profile as CSV and JSON."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from outrider.completion import Completion, Piece

_GREEN, _BOLD, _DIM, _PLAIN = "\x1b[32m", "\x1b[1m", "\x1b[2m", "\x1b[0m"


class LiveText:
    """Writes pieces to stdout as they come; on a terminal, what the draft had guessed is green, the target's own bold.

    Text that nobody has verified is shown on a terminal only, dim, and followed by what is true from its beginning on.
    """

    def __init__(self) -> None:
        self._coloured = sys.stdout.isatty()
        self._unverified = False

    def __call__(self, piece: Piece) -> None:
        if not piece.verified:
            self._unverified = self._unverified or bool(piece.text)
            sys.stdout.write(f"{_DIM}{piece.text}{_PLAIN}" if self._coloured else "")
            sys.stdout.flush()
            return
        if self._unverified and self._coloured:
            sys.stdout.write("\n[the target is back; from where the dim text began:]\n")
        self._unverified = False
        colour = _GREEN if piece.accepted else _BOLD
        sys.stdout.write(f"{colour}{piece.text}{_PLAIN}" if self._coloured else piece.text)
        sys.stdout.flush()


def silent(piece: Piece) -> None:
    """Shows nothing."""


def summary(completions: Sequence[Completion], wall_seconds: float) -> str:
    """The final report of a run: counts add up over prompts, rates are ratios of sums."""
    tokens = sum(len(done.token_ids) for done in completions)
    rounds = sum(done.rounds for done in completions)
    drafted = sum(done.num_draft_tokens for done in completions)
    accepted = sum(done.num_accepted_tokens for done in completions)
    lines = [
        f"prompt tokens {sum(done.prompt_tokens for done in completions)}, generated {tokens}, rounds {rounds}",
        f"time {wall_seconds:.2f} s, {tokens / wall_seconds if wall_seconds else 0:.1f} tokens/s",
    ]
    if drafted:
        length = (accepted + rounds) / rounds
        lines.insert(1, f"drafted {drafted}, accepted {accepted} ({accepted / drafted:.1%}), {length:.2f} tokens a round (acceptance length)")
    lines += _prepared(completions)
    if any(done.usd is not None for done in completions):
        lines.append(f"cost ${sum(done.usd or 0.0 for done in completions):.6f}, as far as prices are stated")
    if sum(done.bytes_up for done in completions) and rounds:
        up, down = (sum(getattr(done, side) for done in completions) / rounds for side in ("bytes_up", "bytes_down"))
        lines.append(f"bytes a round {up:.0f} up, {down:.0f} down")
    lines += [f"target on {device}" for device in sorted({done.device for done in completions if done.device})]
    return "\n".join([*lines, *_against_baseline(completions)])


def _prepared(completions: Sequence[Completion]) -> list[str]:
    """What adaptive drafting expected, and what it did while verdicts were under way."""
    told = [done for done in completions if done.expected_acceptance_length]
    rounds, nodes = sum(done.rounds for done in told), sum(done.bet_nodes for done in told)
    if not told:
        return []
    expected = sum(done.expected_acceptance_length * done.rounds for done in told) / rounds
    actual = sum(done.num_accepted_tokens + done.rounds for done in told) / rounds
    lines = [f"expected {expected:.2f} tokens a round, got {actual:.2f}"]
    if nodes:
        used, hits = sum(done.bet_nodes_used for done in told), sum(done.bet_hits for done in told)
        lines.append(f"while verdicts were under way: {nodes} nodes ranked, {used} of them used; {hits} of {rounds} next trees begun")
    return lines


def _against_baseline(completions: Sequence[Completion]) -> list[str]:
    """Only what was measured in this run: without a target-only run there is no speed-up."""
    pairs = [(done, done.baseline) for done in completions if done.baseline is not None]
    if not pairs:
        return []
    same = sum(done.token_ids == baseline.token_ids for done, baseline in pairs)
    ours, theirs = (sum(run.seconds for run in side) for side in zip(*pairs, strict=True))
    rounds, alone = sum(done.rounds for done, _ in pairs), sum(baseline.rounds for _, baseline in pairs)
    return [
        f"target-only, same prompts and seeds: {alone} passes instead of {rounds}, "
        f"{theirs:.2f} s instead of {ours:.2f} s: speed-up {theirs / ours:.2f}",
        f"identical texts: {same} of {len(pairs)}",
    ]


def write_profile(directory: Path, completions: Sequence[Completion]) -> list[Path]:
    """outrider-profile.json with everything and .csv with the numeric columns and the target's device, a row a text."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = [directory / "outrider-profile.json", directory / "outrider-profile.csv"]
    records = [done.record() for done in completions]
    paths[0].write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    rows: list[dict[str, object]] = [{key: value for key, value in record.items() if isinstance(value, int | float)} for record in records]
    for row, done in zip(rows, completions, strict=True):
        row["baseline_seconds"] = done.baseline.seconds if done.baseline else ""
        row["speedup"] = done.speedup or ""
        row["device"] = done.device
    with paths[1].open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else ["index"])
        writer.writeheader()
        writer.writerows(rows)
    return paths
