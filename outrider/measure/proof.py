"""The findings of `outrider prove`: as data, and as a report in Markdown that stands alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import geometric_mean, median
from typing import Any, NamedTuple

from inference.backends.timed import TimeProfile
from inference.cost.billing import PER_MILLION
from inference.planner.profile_files import Subject
from inference.times import Shape
from outrider.measure.rows import first_difference
from outrider.terminal.tables import aligned
from outrider.text.completion import Completion
from outrider.text.pieces import gaps_between

TEMPERATURES = (0.0, 0.7, 1.0)
"""Temperatures of the texts. Above 0 the seed of a text is the number of its prompt."""


class TextPair(NamedTuple):
    """The texts of one prompt with the same parameters, made in the same turn."""

    prompt: int  # number of the prompt, from 0
    temperature: float
    alone: Completion
    drafted: Completion

    @property
    def differs_at(self) -> int | None:
        """The first token that differs; None where the texts are equal."""
        return first_difference(self.drafted.token_ids, self.alone.token_ids)

    @property
    def speed(self) -> float:
        """Speed with a draft over target-only's, from the request to the last token."""
        return self.alone.seconds / self.drafted.seconds


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
    profile: TimeProfile
    usd_per_hour: float | None

    @property
    def unequal(self) -> list[TextPair]:
        """Pairs whose texts differ."""
        return [pair for pair in self.pairs if pair.differs_at is not None]

    @property
    def equality(self) -> list[dict[str, float]]:
        """For each temperature the number of texts, and of those that are equal."""
        found = []
        for at in sorted({pair.temperature for pair in self.pairs}):
            equal = [pair.differs_at is None for pair in self.pairs if pair.temperature == at]
            found.append({"temperature": at, "texts": len(equal), "equal": sum(equal)})
        return found

    @property
    def mean_speed(self) -> float:
        """Geometric mean of the texts' speeds over target-only's."""
        return geometric_mean(pair.speed for pair in self.pairs)

    @property
    def least_speed(self) -> float:
        """The speed of the slowest text over target-only's."""
        return min(pair.speed for pair in self.pairs)

    @property
    def comparison(self) -> dict[str, dict[str, float]]:
        """Figures of each arm's texts, by the heads of the table."""
        return {
            "target-only": self._figures([pair.alone for pair in self.pairs]),
            "with a draft": self._figures([pair.drafted for pair in self.pairs]),
        }

    def _figures(self, texts: Sequence[Completion]) -> dict[str, float]:
        """Waits of the texts' reader, speed and length: medians over texts, gaps of all together.
        Dollars where there is a price.
        """
        gaps = gaps_between(done.arrivals for done in texts)
        speed = median(done.tokens_per_second for done in texts)
        forwards = sum(done.traffic.forwards for done in texts)
        found = {
            "texts": len(texts),
            "first_ms": median(done.time_to_first_token for done in texts) * 1e3,
            "gap_p50_ms": gaps.p50 * 1e3,
            "gap_p99_ms": gaps.p99 * 1e3,
            "gap_max_ms": gaps.largest * 1e3,
            "tokens_per_second": speed,
            "acceptance_length": sum(len(done.token_ids) for done in texts) / max(1, forwards),
        }
        if self.usd_per_hour is not None:
            found["usd_per_million"] = self.usd_per_hour / 3600 / speed * PER_MILLION
        return found

    def record(self) -> dict[str, Any]:
        """The report as plain data for JSON. Times are in seconds."""
        return {
            "equal": not self.unequal,
            "target": self.target,
            "device": self.device,
            "draft": self.draft,
            "digest": self.digest,
            "environment": dict(self.environment),
            "checks": list(self.checks),
            "equality": self.equality,
            "first_start": {
                "speeds": [pair.speed for pair in self.pairs],
                "least": self.least_speed,
                "mean": self.mean_speed,
            },
            "comparison": self.comparison,
            "usd_per_hour": self.usd_per_hour,
            "subject": asdict(self.subject),
            "times": [[*shape, seconds] for shape, seconds in sorted(self.times.items())],
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
    for one in proof.equality:
        lines.append("- temperature {temperature:g}: {equal} of {texts} equal".format(**one))
    for pair in proof.unequal:
        lines.append(
            f"- prompt {pair.prompt} at temperature {pair.temperature:g} differs at token "
            f"{pair.differs_at}"
        )
    speeds = ", ".join(f"{pair.speed:.2f}" for pair in proof.pairs)
    lines += [
        *["", "## Speed from a first start", ""],
        f"Each text's speed over target-only's, in order: {speeds}.",
        f"Slowest {proof.least_speed:.2f}, geometric mean {proof.mean_speed:.2f}. Draft and target "
        "share this machine, so these figures are no promise.",
        *["", "## Comparison", "", "```", *_comparison(proof), "```"],
        *["", "## Milliseconds of a forward", "", "```", *_forwards(proof), "```"],
    ]
    return lines


def verdict(proof: Proof) -> str:
    """The report in one line."""
    texts = len(proof.pairs)
    equal = texts - len(proof.unequal)
    return (
        f"{'NOT proved' if proof.unequal else 'proved'}: {equal} of {texts} texts equal at "
        f"temperatures {', '.join(f'{one:g}' for one in TEMPERATURES)}; "
        f"{proof.mean_speed:.2f} of target-only's speed on average, "
        f"{proof.least_speed:.2f} at least"
    )


def _comparison(proof: Proof) -> list[str]:
    arms = proof.comparison
    rows = [[arm, *(f"{one:.4g}" for one in figures.values())] for arm, figures in arms.items()]
    return aligned(["", *arms["target-only"]], rows)


def _forwards(proof: Proof) -> list[str]:
    table = []
    for (rows, nodes), seconds in sorted(proof.times.items()):
        fitted = proof.profile.seconds(rows, nodes, proof.subject.context)
        figures = [f"{seconds * 1e3:.2f}", f"{fitted * 1e3:.2f}"]
        table.append([str(rows), str(nodes), *figures])
    return aligned(("rows", "nodes", "measured", "profile.json"), table)
