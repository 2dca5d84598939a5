"""The findings of `outrider prove`: as data, and as a report in Markdown that stands alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from inference.backends.timed import TimeProfile
from inference.planner.profile_files import Subject
from inference.times import Shape
from outrider.prove.text_pairs import TEMPERATURES, TextPair, Waits, mean_speed, waits_of

LEAST_SPEED = 0.95
"""Least speed of a text at a first start, of target-only's."""

LEAST_MEAN = 0.98
"""Least speed over all texts, of target-only's."""


@dataclass(frozen=True)
class Proof:
    """The findings about a target on this machine. At least one pair of texts is needed."""

    target: str  # the model's name
    device: str  # as the target describes it
    draft: str | None  # name; None where copied text alone drafts
    digest: str | None  # of the artefact; None without one
    environment: Mapping[str, Any]
    checks: Sequence[str]  # of a Neuron device, before a target was served; else empty
    pairs: Sequence[TextPair]  # in the order in which they were made, from a first start on
    subject: Subject  # whose times were measured
    times: Mapping[Shape, float]  # measured seconds by rows and nodes
    planned: Mapping[Shape, float]  # seconds as computed for the artefact's graphs; may be empty
    profile: TimeProfile
    usd_per_hour: float | None

    @property
    def unequal(self) -> list[TextPair]:
        """Pairs whose texts differ."""
        return [pair for pair in self.pairs if pair.differs_at is not None]

    @property
    def least_speed(self) -> float:
        """The speed of the slowest text over target-only's."""
        return min(pair.speed for pair in self.pairs)

    @property
    def is_kept(self) -> bool:
        """Whether all texts are equal and none falls below the promise."""
        fast = self.least_speed >= LEAST_SPEED and mean_speed(self.pairs) >= LEAST_MEAN
        return not self.unequal and fast

    def waits(self) -> dict[str, Waits]:
        """The waits of the reader of each arm's texts."""
        return {
            "target-only": waits_of([pair.alone for pair in self.pairs]),
            "with a draft": waits_of([pair.drafted for pair in self.pairs]),
        }

    def record(self) -> dict[str, Any]:
        """The report as plain data for JSON. Times are in seconds."""
        return {
            "kept": self.is_kept,
            "target": self.target,
            "device": self.device,
            "draft": self.draft,
            "digest": self.digest,
            "environment": dict(self.environment),
            "checks": list(self.checks),
            "equality": [
                {"temperature": at, "texts": len(pairs), "equal": _equal(pairs)}
                for at, pairs in _by_temperature(self.pairs)
            ],
            "first_start": {
                "speeds": [pair.speed for pair in self.pairs],
                "least": self.least_speed,
                "mean": mean_speed(self.pairs),
            },
            "comparison": {arm: waits._asdict() for arm, waits in self.waits().items()},
            "usd_per_hour": self.usd_per_hour,
            "subject": asdict(self.subject),
            "times": [[*shape, seconds] for shape, seconds in sorted(self.times.items())],
            "planned": [[*shape, seconds] for shape, seconds in sorted(self.planned.items())],
            "texts": [
                {
                    "prompt": pair.prompt,
                    "temperature": pair.temperature,
                    "differs_at": pair.differs_at,
                    "alone": pair.alone.record(),
                    "drafted": pair.drafted.record(),
                }
                for pair in self.pairs
            ],
        }


def markdown(proof: Proof) -> list[str]:
    """The report's lines."""
    where = ", ".join(f"{name} {value}" for name, value in proof.environment.items() if value)
    lines = [
        f"# {proof.target} on {proof.device}, drafted by {proof.draft or 'copied text'}",
        "",
        f"Made by `outrider prove`. {where}.",
        *([f"Artefact {proof.digest}."] if proof.digest else []),
        *(["", "## The device", "", *(f"- {line}" for line in proof.checks)] * bool(proof.checks)),
        *["", "## Texts with a draft and target-only's, token by token", ""],
    ]
    for at, pairs in _by_temperature(proof.pairs):
        lines.append(f"- temperature {at:g}: {_equal(pairs)} of {len(pairs)} equal")
    for pair in proof.unequal:
        lines.append(
            f"- prompt {pair.prompt} at temperature {pair.temperature:g} differs at token "
            f"{pair.differs_at}"
        )
    speeds = ", ".join(f"{pair.speed:.2f}" for pair in proof.pairs)
    lines += [
        *["", "## The promise, from a first start on", ""],
        f"Each text's speed over target-only's, in the order in which they were made: {speeds}.",
        f"The least is {proof.least_speed:.2f} (promised {LEAST_SPEED:g}), the geometric mean "
        f"{mean_speed(proof.pairs):.2f} (promised {LEAST_MEAN:g}).",
        *["", "## Comparison", "", *_comparison(proof)],
        *["", "## Milliseconds of a forward", "", *_forwards(proof)],
    ]
    return lines


def verdict(proof: Proof) -> str:
    """The report in one line."""
    equal, texts = _equal(proof.pairs), len(proof.pairs)
    return (
        f"{'proved' if proof.is_kept else 'NOT proved'}: {equal} of {texts} texts equal at "
        f"temperatures {', '.join(f'{one:g}' for one in TEMPERATURES)}; from a first start on "
        f"{mean_speed(proof.pairs):.2f} of target-only's speed, the least {proof.least_speed:.2f}"
    )


def _comparison(proof: Proof) -> list[str]:
    heads = ("arm", "texts", "first token ms", "gap p50", "p99", "largest", "tokens/s", "length")
    rows = [
        [arm, str(one.texts), *(f"{figure:.1f}" for figure in one[1:-1]), f"{one[-1]:.2f}"]
        for arm, one in proof.waits().items()
    ]
    if proof.usd_per_hour is None:
        return _table(heads, rows)
    for row, one in zip(rows, proof.waits().values(), strict=True):
        row.append(f"{proof.usd_per_hour / 3600 / one.tokens_per_second * 1e6:.2f}")
    return _table((*heads, "$ per million"), rows)


def _forwards(proof: Proof) -> list[str]:
    rows = []
    for (rows_, nodes), seconds in sorted(proof.times.items()):
        planned = proof.planned.get((rows_, nodes))
        fitted = proof.profile.seconds(rows_, nodes, proof.subject.context)
        words = "" if planned is None else f"{planned * 1e3:.2f}"
        figures = [f"{seconds * 1e3:.2f}", words, f"{fitted * 1e3:.2f}"]
        rows.append([str(rows_), str(nodes), *figures])
    return _table(("rows", "nodes", "measured", "as planned", "profile.json"), rows)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [heads, ["---"] * len(heads), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def _by_temperature(pairs: Sequence[TextPair]) -> list[tuple[float, list[TextPair]]]:
    ordered = sorted(pairs, key=lambda pair: pair.temperature)
    return [(at, list(group)) for at, group in groupby(ordered, lambda pair: pair.temperature)]


def _equal(pairs: Sequence[TextPair]) -> int:
    return sum(pair.differs_at is None for pair in pairs)
