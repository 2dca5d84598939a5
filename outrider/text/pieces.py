"""Pieces of a text, from its tokens as they are committed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from inference.order import TokenLogProb
from inference.proposer import NOBODY
from inference.text.tokenizer import Tokenizer
from outrider.text.stop_strings import StopStrings
from outrider.text.tools.call_reader import CallPiece
from outrider.text.tools.tool_calls import Tools


class Piece(NamedTuple):
    """A part of a text that the target has committed."""

    text: str
    proposer: int = NOBODY  # kind of the proposer of its last token
    call: CallPiece | None = None  # part of a call instead of text
    tokens: tuple[int, ...] = ()  # committed since the last piece
    logprobs: tuple[TokenLogProb, ...] = ()  # [tokens] if requested

    @property
    def accepted(self) -> bool:
        """Whether a draft proposed its last token."""
        return self.proposer != NOBODY


class PieceMaker:
    """Turns tokens into pieces: whole characters, up to a stop string, with calls apart from text.

    minimum: number of first tokens in which no stop string ends the text
    tools: functions that the text may call; None for none
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        stop: Sequence[str],
        minimum: int,
        tools: Tools | None,
    ) -> None:
        self._text, self._stop = tokenizer.stream(prompt), StopStrings(stop)
        self._shown: Mapping[int, str] = {} if tools is None else tools.shown(tokenizer)
        self._calls = None if tools is None else tools.reader(tokenizer)
        self._minimum, self._pushed = minimum, 0
        self._tokens, self._logprobs = list[int](), list[TokenLogProb]()

    @property
    def stopped_by(self) -> str:
        """The stop string that was found; empty for none."""
        return self._stop.match

    def count(self, token: int, logprob: TokenLogProb | None) -> None:
        """Add a token to the next piece. A stop id is counted, but not pushed."""
        self._tokens.append(token)
        if logprob is not None:
            self._logprobs.append(logprob)

    def push(self, token: int, proposer: int) -> Iterator[Piece]:
        """The pieces that are complete with this token."""
        mark = self._shown.get(token)
        text = self._text.push(token) if mark is None else self._text.finish() + mark
        self._pushed += 1
        certain = text if self._pushed <= self._minimum else self._stop.push(text)
        return self._pieces(certain, proposer)

    def finish(self) -> Iterator[Piece]:
        """The rest of the text and of its tokens."""
        yield from self._pieces(self._stop.push(self._text.finish()) + self._stop.finish(), NOBODY)
        rest = self._calls.finish() if self._calls is not None else ""
        if rest or self._logprobs:
            yield self._piece(rest, NOBODY)

    def _pieces(self, text: str, proposer: int) -> Iterator[Piece]:
        for part in [text] if self._calls is None else self._calls.push(text):
            if part:
                yield self._piece(part, proposer)

    def _piece(self, part: str | CallPiece, proposer: int) -> Piece:
        tokens = tuple(self._tokens), tuple(self._logprobs)
        self._tokens, self._logprobs = [], []
        if isinstance(part, CallPiece):
            return Piece("", proposer, part, *tokens)
        return Piece(part, proposer, None, *tokens)


class Gaps(NamedTuple):
    """Seconds between the pieces of texts, as their reader sees them."""

    p50: float
    p99: float
    largest: float


def gaps_between(texts: Iterable[Sequence[float]]) -> Gaps:
    """Gaps between pieces, all together; 0 without any. texts: [text] seconds of its pieces"""
    gaps = [after - before for arrivals in texts for before, after in pairwise(arrivals)]
    return Gaps(*np.quantile(gaps or [0.0], [0.5, 0.99, 1.0]).tolist())
