"""The tokens that a client has of a session, which of them nobody has read yet, and what the text
may still spend.

Everything that a target says is checked. A limit on spending holds over all targets together. Pure;
its owner guards it against other threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from inference.errors import Mismatch
from inference.order import LEAST_CREDIT, Decode, End, Pace, Progress
from inference.stats import Traffic

SUMS = ("nodes", "forwards", "lone", "queue_seconds", "model_seconds", "share_seconds")
"""Counters of Progress that only grow within a session."""


MOST_UNREAD = 512
"""Tokens that nobody has read. Beyond them none is acknowledged, and the target stops."""


class Received:
    """A text as it comes, over any number of sessions one after another.

    tokens: all of them, the prompt included
    most: length that was asked for; a target must not go beyond it
    end: how the text ended, once it has
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
    def is_behind(self) -> bool:
        """Whether its reader is so far behind that nothing more is acknowledged."""
        return self.unread > MOST_UNREAD

    @property
    def session(self) -> Progress:
        """The latest progress of the present session. Its counters begin with that session."""
        return self._session

    def ask(self, most: int, stop_ids: frozenset[int]) -> None:
        """Let the text grow to the length `most`, or up to one of these stop ids."""
        self.most, self.stop_ids, self.end = most, stop_ids, End.NOT

    def begin_session(self) -> None:
        """Begin a new session, whose counters start at 0."""
        self._before, self._session = self.last, _NOTHING

    def take(self, came: Progress) -> None:
        """Take progress in. Raises Mismatch, in words that follow the target's name."""
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

    def note_alive(self) -> None:
        """Note that the target is there, and has nothing to tell yet."""
        self._news = True

    def withdraw_end(self) -> None:
        """Withdraw the end that was announced: another target goes on."""
        self.end = End.NOT

    def finish(self, end: End) -> None:
        """End the text where it is."""
        self.end, self._news = end, True

    def read(self) -> Progress | None:
        """Return what came since the last call."""
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
        """Return the new tokens; raise Mismatch where known ones differ, or some are left out."""
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
        """Return the end of the text, if what was announced is one.

        An end must show in the text, or be one that only the target can know. An order may have
        been replaced while an earlier end was on its way.
        """
        if self.end is not End.NOT:
            return self.end
        if said in (End.CREDIT, End.EVICTED):  # the text stands still for now
            return End.NOT
        if said is End.MAX_TOKENS and len(self.tokens) < self.most:
            return End.NOT
        made = len(self.tokens) > self._prompt_length
        if said is End.STOP_ID and not (made and self.tokens[-1] in self.stop_ids):
            return End.NOT
        return said


class Spending:
    """An order, and nodes that may have been paid for without our hearing of them.

    A lost target may have gone on as far as its credit goes. All of that counts as spent, unless
    the session is found again.

    asked: with pace WAIT, the length below which a forward was asked for last
    """

    def __init__(self, received: Received, order: Decode | None = None) -> None:
        self._received, self.asked = received, 0
        self._unseen = self._in_doubt = 0
        if order is not None and order.most_nodes and not order.credit:
            order = replace(order, credit=LEAST_CREDIT)  # little credit: little can be spent unseen
        self.order = order

    @property
    def is_limited(self) -> bool:
        return self.order is not None and self.order.most_nodes > 0

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left for another session."""
        return self.is_limited and self._left <= 0

    @property
    def owes_token(self) -> bool:
        """Whether an open session has what it needs to make a token soon."""
        received, order = self._received, self.order
        if order is None or received.end is not End.NOT or received.is_behind:
            return False
        length = len(received.tokens)
        free = order.pace is Pace.GO_ON or self.asked >= length
        return free and length < order.end and not 0 < order.tokens_per_second < 1

    @property
    def session_order(self) -> Decode | None:
        """The order for the present session: less what other sessions have computed."""
        if self.order is None or not self.is_limited:
            return self.order
        left = self._left + self._in_doubt + self._received.session.nodes
        return replace(self.order, most_nodes=max(left, 1))

    def count_lost(self, acknowledged: int, tree_nodes: int) -> None:
        """Count what a lost session may have computed beyond the acknowledged length.

        That is as many tokens as its credit allows; each takes a forward of at most `tree_nodes`
        nodes.
        """
        if self.order is not None and self.is_limited:
            order, length = self.order, len(self._received.tokens)
            ahead = max(min(acknowledged + order.credit, order.end) - length, 0)
            forwards = min(ahead, 1) if order.pace is Pace.WAIT else ahead
            self._in_doubt = min(forwards * tree_nodes, max(self._left, 0))

    def clear_doubt(self) -> None:
        """Count nothing extra: the session was found and tells what it has computed."""
        self._in_doubt = 0

    def settle_doubt(self) -> None:
        """Keep the doubtful nodes as spent: another session goes on."""
        self._unseen, self._in_doubt = self._unseen + self._in_doubt, 0

    @property
    def _left(self) -> int:
        assert self.order is not None
        seen = self._received.last.nodes
        return self.order.most_nodes - seen - self._unseen - self._in_doubt


_NOTHING = Progress(0, (), (), 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0, 0, End.NOT)
