"""Report of a comparison: speeds by kind of text, as geometric means over pairs of texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from benchmarks.harness import table_lines
from benchmarks.rivals.arm import Made
from benchmarks.rivals.play import Answers
from outrider.measure.figures import first_difference
from outrider.measure.statistics import geometric_interval

ALL = "all"

Measure = Callable[[Made], float | None]
"""Seconds a token of a text; None where it has no such figure."""

MEASURES: dict[str, Measure] = {
    "after the first tokens": lambda made: made.token_seconds,
    "with the prompt": lambda made: made.whole_token_seconds,
}
"""Both ways of counting: from the first tokens on, and from the request on."""

HEADS = (
    *("kind", "arm", "texts", "ms a token", "… with the prompt"),
    *("of its plain", "… with the prompt", "hybrid over it", "… with the prompt"),
    *("tokens a pass", "equal texts"),
)


@dataclass(frozen=True)
class Group:
    """Arms on the same files. plains: every arm, and the plain arm of its engine.  hybrid: the arm
    that all others are set against, where it was played.
    """

    title: str
    hybrid: str
    plains: dict[str, str]


def speeds(answers: Sequence[Answers], fast: str, slow: str, measure: Measure) -> list[float]:
    """Speeds of one arm over another, text by text."""
    pairs = [(measure(one.made[slow]), measure(one.made[fast])) for one in answers]
    return [theirs / ours for theirs, ours in pairs if theirs is not None and ours]


def differing(answers: Sequence[Answers], group: Group) -> Iterator[tuple[str, str, int]]:
    """Texts that are not those of their own plain arm: arm, prompt, and place of the first token
    that differs.
    """
    for arm, plain in group.plains.items():
        for one in answers:
            place = first_difference(one.made[arm].ids, one.made[plain].ids)
            if place is not None:
                yield arm, f"{one.kind} {one.name}", place


def tokens_a_pass(answers: Sequence[Answers], arm: str) -> float | None:
    """Tokens that a pass of the target brought, behind the first tokens."""
    made = [one.made[arm] for one in answers]
    passes = sum(one.passes for one in made)
    return sum(one.tokens - one.first for one in made) / passes if passes else None


def markdown(answers: Sequence[Answers], groups: Sequence[Group]) -> str:
    """A table for each group of arms, and what differs."""
    lines = list[str]()
    kinds = list(dict.fromkeys(one.kind for one in answers))
    for group in groups:
        lines += ["", f"## {group.title}", ""]
        chosen = [(kind, [one for one in answers if one.kind == kind]) for kind in kinds]
        chosen += [(ALL, list(answers))] * (len(kinds) > 1)
        rows = [_row(kind, arm, some, group) for kind, some in chosen for arm in group.plains]
        lines += [*table_lines(HEADS, rows), ""]
        lines += [
            f"- {arm}, {prompt}: another token at place {place}"
            for arm, prompt, place in differing(answers, group)
        ]
    return "\n".join([*lines, ""])


def _row(kind: str, arm: str, answers: Sequence[Answers], group: Group) -> list[str]:
    plain, passes = group.plains[arm], tokens_a_pass(answers, arm)
    taken = [
        [seconds for one in answers if (seconds := measure(one.made[arm]))]
        for measure in MEASURES.values()
    ]
    each = [f"{1e3 * geometric_mean(one):.1f}" if one else "-" for one in taken]
    over = [_mean(answers, arm, plain, measure) for measure in MEASURES.values()]
    hybrid = [_mean(answers, group.hybrid, arm, measure) for measure in MEASURES.values()]
    same = sum(one.made[arm].ids == one.made[plain].ids for one in answers)
    told = "-" if passes is None else f"{passes:.2f}"
    equal = "" if arm == plain else f"{same} of {len(answers)}"
    return [kind, arm, str(len(answers)), *each, *over, *hybrid, told, equal]


def _mean(answers: Sequence[Answers], fast: str, slow: str, measure: Measure) -> str:
    """A geometric mean with its interval; empty for an arm beside itself, or one not played."""
    if fast == slow or not all(fast in one.made for one in answers):
        return ""
    pairs = speeds(answers, fast, slow, measure)
    if not pairs:
        return "-"
    low, high = geometric_interval([[one] for one in pairs])
    return f"{geometric_mean(pairs):.2f}x ({low:.2f} to {high:.2f})"
