"""What a client has of a session: its tokens, and what of them nobody has read yet. Nothing that a
target says is believed without a look. Pure; its owner guards it.
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.errors import Mismatch
from inference.order import End, Progress
from inference.stats import Traffic

SUMS = ("nodes", "forwards", "lone", "queue_seconds", "model_seconds", "share_seconds")
"""Counters of Progress that only grow within a session."""


class Received:
    """A text as it comes, over any number of sessions one after another.

    tokens: all of them, the prompt included.  most: length that it may come to; what lies beyond
    was not asked for.  end: once the text has ended.
    """

    def __init__(self, prompt: Sequence[int], vocabulary: int, traffic: Traffic) -> None:
        self.tokens = list(prompt)
        self.last = _NOTHING
        self.ask(len(self.tokens), frozenset())
        self._vocabulary, self._traffic = vocabulary, traffic
        self._read = self._prompt_length = len(self.tokens)
        self._named: list[int] = []  # who had named each token beyond the prompt
        self._before = self._session = _NOTHING  # all sessions before this one; this one so far
        self._news = False

    @property
    def unread(self) -> int:
        return len(self.tokens) - self._read

    @property
    def session(self) -> Progress:
        """What the session that is under way said last; its sums begin with it."""
        return self._session

    def ask(self, most: int, stop_ids: frozenset[int]) -> None:
        """The text may come to this length, and ends behind one of these."""
        self.most, self.stop_ids, self.end = most, stop_ids, End.NOT

    def session_begins(self) -> None:
        """What comes next counts from 0."""
        self._before, self._session = self.last, _NOTHING

    def take(self, came: Progress) -> None:
        """Raises Mismatch, in words that follow the target's name."""
        fresh = self._fresh(came)
        self._check(came, fresh)
        self.tokens += fresh
        self._named += came.proposers[len(came.tokens) - len(fresh) :]
        self.end = self._ended(came.end)
        total = came._replace(
            **{name: getattr(self._before, name) + getattr(came, name) for name in SUMS}
        )
        self._traffic.follow(self.last, total)
        self.last, self._session, self._news = total, came, True

    def is_alive(self) -> None:
        """The target is there, and has nothing to tell yet."""
        self._news = True

    def goes_on(self) -> None:
        """What was said to be the end is not: another target goes on."""
        self.end = End.NOT

    def finish(self, end: End) -> None:
        """The text ends where it is."""
        self.end, self._news = end, True

    def read(self) -> Progress | None:
        """What came since the last call."""
        if not self._news:
            return None
        start, self._news = self._read, False
        self._read = len(self.tokens)
        named = self._named[start - self._prompt_length :]
        return self.last._replace(
            position=start,
            tokens=tuple(self.tokens[start:]),
            proposers=tuple(named),
            end=self.end,
        )

    def _fresh(self, came: Progress) -> Sequence[int]:
        """Tokens beyond those that are there, which must begin with the same."""
        length = len(self.tokens)
        if came.position > length:
            raise Mismatch(f"left out tokens {length} to {came.position - 1}")
        known = length - came.position
        if self.tokens[came.position : came.position + len(came.tokens)] != list(
            came.tokens[:known]
        ):
            raise Mismatch(f"contradicts itself: tokens from {came.position} on were others before")
        return came.tokens[known:]

    def _check(self, came: Progress, fresh: Sequence[int]) -> None:
        if fresh and self.end is not End.NOT:
            raise Mismatch(f"sent {len(fresh)} tokens after the end of the text")
        if len(self.tokens) + len(fresh) > self.most:
            raise Mismatch(f"made {len(self.tokens) + len(fresh)} tokens, {self.most} were asked")
        if any(token >= self._vocabulary for token in fresh):
            raise Mismatch(
                f"sent token {max(fresh)}, which is outside its vocabulary of {self._vocabulary}"
            )
        if any(getattr(came, name) < getattr(self._session, name) for name in SUMS):
            raise Mismatch("counts its work backwards")
        if self.stop_ids & set(fresh[:-1]):
            raise Mismatch("went on behind a stop id")

    def _ended(self, said: End) -> End:
        """An end that the text shows, or that only the target can know; an order may have been
        replaced while an earlier end was on its way.
        """
        if self.end is not End.NOT:
            return self.end
        if said is End.MAX_TOKENS and len(self.tokens) < self.most:
            return End.NOT
        made = len(self.tokens) > self._prompt_length
        if said is End.STOP_ID and not (made and self.tokens[-1] in self.stop_ids):
            return End.NOT
        return said


_NOTHING = Progress(0, (), (), 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0, 0, End.NOT)
