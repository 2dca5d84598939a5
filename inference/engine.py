"""Many sessions on one target: rows lent, prompts prefilled in chunks, everybody's trees verified in one forward.

A session is its tokens; a row holds their keys and can be taken away and filled again. Sessions are spoken to from any thread;
one thread at a time makes the forwards. One session's fault, or end, touches no other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference.backends import Model, Segment
from inference.errors import InvalidRequest, LimitExceeded, Mismatch, OutriderError, Unavailable
from inference.roster import Roster
from inference.sampling import SamplingParams
from inference.session import Answer, Generation, Opened, Opening, Round, Session
from inference.tree import TokenTree
from inference.turns import LEAST_CHUNK, Turn, Turns
from inference.verification import Ask, accept, asking, with_draft

Tell = Callable[[], None]
"""What somebody outside is told; called when the lock is released."""


class Forward(NamedTuple):
    """One call of the model: what was asked, what was computed, and seconds of it and of the engine around it."""

    prefill: bool
    rows: int
    nodes: int  # of all rows, without padding
    padded_rows: int
    padded_nodes: int  # of each row
    model_seconds: float
    engine_seconds: float


class Observer:
    """Hears what an engine does, on the thread that makes the forwards. This one does nothing."""

    def forward(self, done: Forward) -> None: ...

    def opened(self, session: Session, opened: Opened) -> None: ...

    def answered(self, session: Session, tree: TokenTree, answer: Answer) -> None: ...

    def evicted(self, session: Session) -> None: ...


class _Share(NamedTuple):
    """One session's part of a forward."""

    session: Session
    tree: TokenTree
    segment: Segment


class Engine:
    """Sessions on the rows of a model.

    max_tree_nodes counts the root; vocabulary: ids the tokenizer knows; waiting: sessions that may stand in line for a row.
    """

    def __init__(
        self,
        model: Model,
        *,
        sequence_length: int,
        max_tree_nodes: int,
        vocabulary: int,
        waiting: int = 64,
    ) -> None:
        self.model, self.sequence_length = model, sequence_length
        self.max_tree_nodes, self.vocabulary = max_tree_nodes, vocabulary
        self.observer = Observer()
        self._lock = threading.Condition()  # guards the roster, its rows and its sessions
        self._roster, self._turns = Roster(model, waiting), Turns(model)
        self._in_hand = (
            False  # a forward is being made: rows stay with their sessions until it is settled
        )
        self._last_end = time.perf_counter()
        self._running = False

    def open(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        tenant: str = "",
        limit: int | None = None,
    ) -> tuple[Session, Future[Opened]]:
        """A session, and the future that is done when its prompt is prefilled.

        limit: tokens it may come to, if fewer than the engine's.  Raises InvalidRequest for a prompt that cannot be served,
        Busy when the line is full.
        """
        limit = min(limit or self.sequence_length, self.sequence_length)
        self.check(prompt, limit)
        session = Session(prompt, params, tenant, limit, self.max_tree_nodes)
        work = Opening(time.perf_counter())
        with self._lock:
            self._roster.add(session)
            self._ask(session, work)
        return session, work.future

    def verify(self, session: Session, tree: TokenTree) -> Future[Answer]:
        """Choose at every node, commit the accepted path; the verdict's next token is the new root."""
        self._check_tree(session, tree)
        work = Round(time.perf_counter(), tree)
        with self._lock:
            self._ask(session, work)
        return work.future

    def generate(
        self,
        session: Session,
        max_tokens: int,
        stop_ids: frozenset[int],
        on_token: Callable[[Answer, bool], None],
    ) -> Future[None]:
        """The target alone: on_token(answer, last) hears of each token, on the engine's thread; a stop id is passed on and ends it."""
        session.check_room(max_tokens)
        work = Generation(time.perf_counter(), max_tokens, stop_ids, on_token)
        with self._lock:
            self._ask(session, work)
        return work.future

    def rewind(self, session: Session, length: int) -> None:
        """Take back what the session committed beyond `length` tokens; asked again, the same tokens come."""
        with self._lock:
            if session.work is not None:
                raise Mismatch("the session's last request is not answered yet")
            if not session.prompt_length <= length <= session.length:
                raise Mismatch(
                    f"{length} tokens: the session has {session.length}, of which {session.prompt_length} were its prompt"
                )
            session.rewind(length)

    def halt(self, session: Session) -> None:
        """A generation of it ends with the token in hand, which is its last."""
        with self._lock:
            if isinstance(session.work, Generation):
                session.work.left = 1

    def detach(self, session: Session) -> None:
        """Nobody is there: a generation ends after the token in hand, and the row is the first to be lent to others."""
        self.halt(session)
        with self._lock:
            session.detached = True
            self._lock.notify_all()

    def attach(self, session: Session) -> None:
        """Somebody is there again."""
        with self._lock:
            session.detached = False

    def close(self, session: Session) -> None:
        """End the session; its row is free once the forward in hand is done. Idempotent."""
        with self._lock:
            session.closed = session.closed or Unavailable("the session is closed")
            tell = [] if self._in_hand else self._bury()
            self._lock.notify_all()
        for call in tell:
            call()

    def check(self, prompt: Sequence[int], limit: int) -> None:
        """Raise unless a session of at most `limit` tokens could start with this prompt."""
        if not len(prompt):
            raise InvalidRequest("the prompt is empty: at least one token is needed")
        if len(prompt) >= limit:
            raise LimitExceeded(
                f"a prompt of {len(prompt)} tokens leaves no room: the sequence length is {limit}, prompt and output together"
            )
        ids = np.asarray(prompt)
        outside = ids[(ids < 0) | (ids >= self.vocabulary)]
        if outside.size:
            raise InvalidRequest(
                f"token id {outside[0]} is outside the vocabulary of {self.vocabulary}"
            )

    @property
    def free_rows(self) -> int:
        """Rows that no session holds."""
        with self._lock:
            return self._roster.pool.free

    @property
    def cached_tokens(self) -> int:
        """Tokens that rows which no session holds remember."""
        with self._lock:
            return self._roster.pool.cached_tokens

    @property
    def most_sessions(self) -> int:
        """On rows and in line."""
        return self._roster.most

    @property
    def sessions(self) -> list[Session]:
        """Those that are open, in order of opening."""
        with self._lock:
            return self._roster.sessions

    @property
    def in_line(self) -> int:
        """Sessions that wait for a row."""
        with self._lock:
            return self._roster.in_line

    def run(self, stopped: threading.Event) -> None:
        """Make forwards until `stopped` is set; stop() sets it and wakes this up."""
        self._running = True
        try:
            while not stopped.is_set():
                with self._lock:
                    wait = self._turns.pause(self._roster, time.perf_counter())
                    if (wait is None or wait > 0) and not stopped.is_set():
                        self._lock.wait(wait)
                        continue
                self.step()
        finally:
            self._stop()

    def _stop(self) -> None:
        """No more forwards will be made, for whatever reason: nobody is left waiting."""
        with self._lock:
            self._running = False
            for session in self._roster.sessions:
                session.closed = session.closed or Unavailable("the target has stopped")
            tell = self._bury()
        for call in tell:
            call()

    def stop(self, stopped: threading.Event) -> None:
        """End run()."""
        with self._lock:
            stopped.set()
            self._lock.notify_all()

    def finish(self, future: Future[Any]) -> None:
        """Wait until the future is done; makes the forwards here when no thread runs the engine."""
        if self._running:
            future.exception()
        while not future.done() and self.step():
            pass

    def step(self) -> bool:
        """At most one forward, for those who are ready; False when nobody was."""
        begun = time.perf_counter()
        with self._lock:
            tell = self._bury()
            tell += [
                partial(self.observer.evicted, session) for session in self._roster.hand_out_rows()
            ]
            tell += [
                self._answer_opening(session, begun)
                for session in self._roster.working
                if session.prefilled
            ]
            turn = self._turns.next(self._roster.working)
            shares = [
                share
                for session, tree in turn.shares
                for share in self._prepare(session, tree, turn, tell)
            ]
            self._in_hand = bool(shares)
        for call in tell:
            call()
        if shares:
            self._forward(shares, turn.prefill, begun)
        return bool(shares or tell)

    def _prepare(
        self, session: Session, tree: TokenTree, turn: Turn, tell: list[Tell]
    ) -> list[_Share]:
        """The session's share, or none when it cannot take part: then it has failed."""
        try:
            segment = (
                session.live.prepare_chunk(tree)
                if turn.prefill
                else with_draft(tree, session.live.prepare(tree))
            )
        except OutriderError as error:
            tell += self._fail(session, error)
            return []
        return [_Share(session, tree, segment)]

    def _forward(self, shares: Sequence[_Share], prefill: bool, begun: float) -> None:
        idle = max(0.0, min(share.session.asked for share in shares) - self._last_end)
        started = time.perf_counter()
        results = self._ask_model(
            asking(self.model, shares[0].tree), [share.segment for share in shares]
        )
        ended = time.perf_counter()
        tell: list[Tell] = []
        with self._lock:
            self._in_hand = False
            for share, result in zip(shares, results, strict=True):
                if isinstance(result, Exception):
                    tell += self._fail(share.session, result)
                elif prefill:
                    share.session.filled(share.tree, ended - started)
                else:
                    tell.append(self._settle(share, result, started, ended))
        for call in tell:
            call()
        self._last_end = time.perf_counter()
        padded = self.model.padded(len(shares), max(len(share.tree) for share in shares))
        if not any(isinstance(result, Exception) for result in results):
            self._turns.record(padded, self._last_end - begun, idle)
        nodes = sum(len(share.tree) for share in shares)
        self.observer.forward(
            Forward(
                prefill,
                len(shares),
                nodes,
                *padded,
                ended - started,
                self._last_end - begun - (ended - started),
            )
        )

    def _ask_model(self, ask: Ask, segments: list[Segment]) -> list[NDArray[Any] | Exception]:
        """What the model answers for each; when a call with several fails, each is tried alone, and only who fails then fails."""
        try:
            return list(ask(segments))
        except Exception as error:  # the one place where a fault of the model becomes a session's, so that the others go on
            if len(segments) == 1:
                return [error]
        return [self._ask_model(ask, [segment])[0] for segment in segments]

    def _settle(self, share: _Share, answered: NDArray[Any], started: float, ended: float) -> Tell:
        """Commit what a tree brought; returns what tells the client."""
        session, tree, work = share.session, share.tree, share.session.work
        assert isinstance(work, Round | Generation)
        budget = (
            len(tree)
            if len(tree) < session.wants
            else min(self.max_tree_nodes, 2 * max(len(tree), LEAST_CHUNK))
        )
        verdict = accept(tree, answered, session.params, session.length)
        session.commits(tree, verdict)
        answer = Answer(verdict, max(0.0, started - work.asked), ended - started, budget)
        if isinstance(work, Round):
            session.answered(ended, len(verdict.path) + 1)
            return lambda: self._tell_round(session, tree, work, answer)
        work.left, work.asked = work.left - 1, ended
        last = work.left == 0 or verdict.next_token in work.stop_ids
        if last:
            session.answered(ended, 1)
        return lambda: self._tell_token(session, tree, work, answer, last)

    def _tell_round(self, session: Session, tree: TokenTree, work: Round, answer: Answer) -> None:
        self.observer.answered(session, tree, answer)
        work.future.set_result(answer)

    def _tell_token(
        self, session: Session, tree: TokenTree, work: Generation, answer: Answer, last: bool
    ) -> None:
        self.observer.answered(session, tree, answer)
        if session.closed is None:
            work.on_token(answer, last)
        if last:
            work.future.set_result(None)

    def _answer_opening(self, session: Session, now: float) -> Tell:
        work = session.work
        assert isinstance(work, Opening)
        opened = Opened(
            session.reused,
            max(0.0, now - work.asked - session.prefill_seconds),
            session.prefill_seconds,
        )
        session.answered(now, 1)

        def tell() -> None:
            self.observer.opened(session, opened)
            work.future.set_result(opened)

        return tell

    def _ask(self, session: Session, work: Opening | Round | Generation) -> None:
        if session.closed is not None:
            raise session.closed
        if session.work is not None:
            raise Mismatch("one at a time: the session's last request is not answered yet")
        session.asks(work)
        if session.row is None:
            self._roster.queue(session)
        self._lock.notify_all()

    def _bury(self) -> list[Tell]:
        """Take closed sessions away; what they waited for fails."""
        return [
            call
            for session in self._roster.remove_closed()
            for call in self._fail(session, session.closed)
        ]

    def _fail(self, session: Session, error: Exception | None) -> list[Tell]:
        """End the session; returns what tells whoever waits for it."""
        session.closed = session.closed or error
        work, session.work = session.work, None
        return [] if work is None else [lambda: work.future.set_exception(error)]

    def _check_tree(self, session: Session, tree: TokenTree) -> None:
        asking(self.model, tree)
        if tree.tokens[0] != session.root:
            raise Mismatch(
                f"the tree's root is token {tree.tokens[0]}, the last committed token is {session.root}"
            )
        if tree.tokens.max() >= self.vocabulary:
            raise InvalidRequest(
                f"token id {tree.tokens.max()} is outside the vocabulary of {self.vocabulary}"
            )
        if len(tree) > self.max_tree_nodes:
            raise LimitExceeded(
                f"a tree of {len(tree)} nodes, the root included: at most {self.max_tree_nodes} are taken"
            )
        if session.length + int(tree.depths.max()) + 1 > session.limit:
            deep = f"{session.length} committed tokens and a tree {tree.depths.max()} deep"
            raise LimitExceeded(
                f"{deep} do not fit the sequence length of {session.limit} with the token chosen below it"
            )
