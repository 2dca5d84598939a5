"""Turns committed tokens into pieces of text, which end at the first stop string."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from inference.errors import InvalidRequest
from inference.order import TokenLogProb
from inference.proposer import NOBODY
from inference.text.tokenizer import Tokenizer
from outrider.text.call_reader import CallPiece, begun
from outrider.text.tool_calls import Tools

MAX_STOPS, MAX_STOP_LENGTH = 16, 1024
"""Maximum number of stop strings, and maximum characters of each."""


class StopStrings:
    """Passes on pieces of text up to the first stop string, which is left out.

    The end of a piece is held back while it may begin a stop string. Raises InvalidRequest for an
    empty stop string, for too many, or for one that is too long.

    match: the stop string that was found; empty if none was
    """

    def __init__(self, strings: Sequence[str]) -> None:
        if len(strings) > MAX_STOPS or any(
            not 1 <= len(string) <= MAX_STOP_LENGTH for string in strings
        ):
            raise InvalidRequest(
                f"up to {MAX_STOPS} stop strings of 1 to {MAX_STOP_LENGTH} characters are allowed: "
                f"got {[string[:40] for string in strings[: MAX_STOPS + 1]]}"
            )
        self._strings, self._buffer, self.match = tuple(strings), "", ""

    def push(self, piece: str) -> str:
        """Add a piece. Returns the text that is certainly before a stop string; empty after one."""
        if self.match or not self._strings:
            return "" if self.match else piece
        text = self._buffer + piece
        places = [(text.find(string), string) for string in self._strings if string in text]
        if places:
            (place, self.match), self._buffer = min(places), ""
            return text[:place]
        certain = len(text) - max(begun(text, string) for string in self._strings)
        self._buffer = text[certain:]
        return text[:certain]

    def finish(self) -> str:
        """Return the text held back at the end of the output; empty after a stop string."""
        rest, self._buffer = self._buffer, ""
        return rest


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
