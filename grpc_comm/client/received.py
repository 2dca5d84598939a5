"""The tokens that a client has of a session, and which of them nobody has read yet.

Everything that a target says is checked. Pure; its owner guards it against other threads.
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.errors import Mismatch
from inference.order import Decode, End, Pace, Progress, TokenLogProb
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
    prompt_logprobs: of the prompt's tokens but the first, once they have come
    """

    def __init__(
        self,
        prompt: Sequence[int],
        vocabulary: int,
        traffic: Traffic,
        likeliest: int | None = None,
    ) -> None:
        """likeliest: tokens that are reported beside each one's log-probability; None: no report"""
        self.tokens = list(prompt)
        self.last = _NOTHING
        self.ask(len(self.tokens), frozenset())
        self._vocabulary, self._traffic = vocabulary, traffic
        self._read = self._prompt_length = len(self.tokens)
        self._named: list[int] = []  # who had named each token beyond the prompt
        self._likeliest, self._logprobs = likeliest, list[TokenLogProb]()  # of these tokens
        self.prompt_logprobs: tuple[TokenLogProb, ...] = ()
        self._before = self._session = _NOTHING  # all sessions before this one; this one so far
        self._news = False

    @property
    def unread(self) -> int:
        return len(self.tokens) - self._read

    @property
    def made(self) -> int:
        """Tokens beyond the prompt."""
        return len(self.tokens) - self._prompt_length

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

    def take_prompt_logprobs(self, came: tuple[TokenLogProb, ...], made: int) -> None:
        """Take those of the prompt but its last `made` tokens; raise Mismatch as take() does."""
        self._check_logprobs(came, self._prompt_length - made - 1)
        self.prompt_logprobs = came

    def take(self, came: Progress) -> None:
        """Take progress in. Raises Mismatch, in words that follow the target's name."""
        fresh = self._fresh(came)
        self._check(came, fresh)
        self.tokens += fresh
        known = len(came.tokens) - len(fresh)
        self._named += came.proposers[known:]
        self._logprobs += came.logprobs[known:]
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

    def owes_token(self, order: Decode | None, asked: int) -> bool:
        """Whether an open session has what it needs to make a token soon.

        asked: with pace WAIT, the length below which a forward was asked for last
        """
        if order is None or self.end is not End.NOT or self.is_behind:
            return False
        length = len(self.tokens)
        return length < order.end and (order.pace is Pace.GO_ON or asked >= length)

    def read(self) -> Progress | None:
        """Return what came since the last call."""
        if not self._news:
            return None
        start, self._news = self._read, False
        self._read = len(self.tokens)
        beyond = slice(start - self._prompt_length, None)
        return self.last._replace(
            position=start,
            tokens=tuple(self.tokens[start:]),
            proposers=tuple(self._named[beyond]),
            end=self.end,
            logprobs=tuple(self._logprobs[beyond]),
        )

    def _fresh(self, came: Progress) -> Sequence[int]:
        """Return the new tokens; raise Mismatch where known ones differ, or some are left out."""
        length = len(self.tokens)
        if came.position > length:
            raise Mismatch(f"left out tokens {length} to {came.position - 1}")
        known = length - came.position
        before = self.tokens[came.position : came.position + len(came.tokens)]
        if before != list(came.tokens[:known]):
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
        self._check_logprobs(came.logprobs, len(came.tokens))

    def _check_logprobs(self, came: Sequence[TokenLogProb], tokens: int) -> None:
        """Raise Mismatch unless there are as many as were asked for, of tokens that there are."""
        due = 0 if self._likeliest is None else tokens
        if len(came) != due or any(len(one.ids) != self._likeliest for one in came):
            raise Mismatch(f"sent other log-probabilities than those of {due} tokens")
        if any(token >= self._vocabulary for one in came for token in one.ids):
            raise Mismatch("sent the log-probability of a token outside its vocabulary")

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
        if said is End.STOP_ID and not (self.made and self.tokens[-1] in self.stop_ids):
            return End.NOT
        return said


_NOTHING = Progress(0, (), (), 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0, 0, End.NOT)
