"""Turns committed tokens into pieces of text."""

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
    """A part of the output that the target has committed."""

    text: str
    proposer: int = NOBODY  # kind of the last token's proposer
    call: CallPiece | None = None  # part of a function call instead of text
    tokens: tuple[int, ...] = ()  # committed since the last piece
    logprobs: tuple[TokenLogProb, ...] = ()  # [token], if requested

    @property
    def accepted(self) -> bool:
        """Whether a draft proposed the piece's last token."""
        return self.proposer != NOBODY


class PieceMaker:
    """Turns tokens into pieces of whole characters, up to a stop string. Calls are separate pieces.

    minimum: number of first tokens in which a stop string does not end the output
    tools: functions that the model may call; None without tools
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
        """The stop string that was found; empty if none was."""
        return self._stop.match

    def count(self, token: int, logprob: TokenLogProb | None) -> None:
        """Count a token toward the next piece. push() adds its text, unless it is a stop id."""
        self._tokens.append(token)
        if logprob is not None:
            self._logprobs.append(logprob)

    def push(self, token: int, proposer: int) -> Iterator[Piece]:
        """Add a token's text. Yields the pieces that it completes."""
        mark = self._shown.get(token)
        text = self._text.push(token) if mark is None else self._text.finish() + mark
        self._pushed += 1
        certain = text if self._pushed <= self._minimum else self._stop.push(text)
        return self._pieces(certain, proposer)

    def finish(self) -> Iterator[Piece]:
        """Yield the rest of the text and of its tokens."""
        yield from self._pieces(self._stop.push(self._text.finish()) + self._stop.finish(), NOBODY)
        rest = self._calls.finish() if self._calls is not None else ""
        if rest or self._logprobs:
            yield self._piece(rest, NOBODY)

    def _pieces(self, text: str, proposer: int) -> Iterator[Piece]:
        for fragment in [text] if self._calls is None else self._calls.push(text):
            if fragment:
                yield self._piece(fragment, proposer)

    def _piece(self, fragment: str | CallPiece, proposer: int) -> Piece:
        tokens = tuple(self._tokens), tuple(self._logprobs)
        self._tokens, self._logprobs = [], []
        if isinstance(fragment, CallPiece):
            return Piece("", proposer, fragment, *tokens)
        return Piece(fragment, proposer, None, *tokens)


class Gaps(NamedTuple):
    """Seconds between the pieces of an output, as a reader sees them."""

    p50: float
    p99: float
    largest: float


def gaps_between(texts: Iterable[Sequence[float]]) -> Gaps:
    """Return the gaps between pieces of all outputs; 0 if none. texts: [output][piece] seconds"""
    gaps = [after - before for arrivals in texts for before, after in pairwise(arrivals)]
    return Gaps(*np.quantile(gaps or [0.0], [0.5, 0.99, 1.0]).tolist())
