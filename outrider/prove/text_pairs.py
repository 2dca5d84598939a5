"""Texts made twice in turn, by the target alone and with a draft: their equality and speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import geometric_mean, median
from threading import Event
from typing import NamedTuple

from inference.sampling import SamplingParams
from outrider.client.client import Client
from outrider.compare.divergence import first_difference
from outrider.terminal.live_text import silent
from outrider.text.completion import Completion, Request
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


class Waits(NamedTuple):
    """Waits of the reader of some texts: medians over texts, gaps of all together."""

    texts: int
    first_ms: float
    gap_p50_ms: float
    gap_p99_ms: float
    gap_max_ms: float
    tokens_per_second: float
    acceptance_length: float


def make_pair(
    client: Client, ids: Sequence[int], params: SamplingParams, most: int, number: int
) -> TextPair:
    """Make a text twice. The prompt is computed before, so it is equally warm for both.

    most: tokens of a text
    number: of the text; an odd one begins with the draft silent
    """
    stop_ids, rows = client.target.description.stop_ids, client.wait()

    def make(tokens: int, *, alone: bool) -> Completion:
        asked = Request(number, "", ids, params, tokens, stop_ids)
        done = client.complete(asked, silent, Event(), alone=alone).raise_failure()
        if rows is not None:
            rows.settle()  # its last call is not to slow the next text
        return done

    make(1, alone=True)
    first = bool(number % 2)
    made = {alone: make(most, alone=alone) for alone in (first, not first)}
    return TextPair(number, params.temperature, made[True], made[False])


def make_pairs(client: Client, prompts: Sequence[Sequence[int]], most: int) -> Iterator[TextPair]:
    """Yield every prompt's texts at every temperature. Raises the error that ended a text."""
    for number, ids in enumerate(prompts):
        for temperature in TEMPERATURES:
            yield make_pair(client, ids, SamplingParams(temperature, seed=number), most, number)


def waits_of(texts: Sequence[Completion]) -> Waits:
    """The waits of the texts' reader. At least one text is needed."""
    gaps = gaps_between(one.arrivals for one in texts)
    forwards = sum(done.traffic.forwards for done in texts)
    return Waits(
        len(texts),
        median(done.time_to_first_token for done in texts) * 1e3,
        gaps.p50 * 1e3,
        gaps.p99 * 1e3,
        gaps.largest * 1e3,
        median(done.tokens_per_second for done in texts),
        sum(len(done.token_ids) for done in texts) / max(1, forwards),
    )


def mean_speed(pairs: Sequence[TextPair]) -> float:
    """Geometric mean of the pairs' speeds over target-only."""
    return geometric_mean(pair.speed for pair in pairs)
