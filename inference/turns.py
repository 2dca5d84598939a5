"""Whose turn it is: chunks of prompts or trees, of which sessions, how much of each, and whether to wait for more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from inference.backends import Model
from inference.roster import SILENT_SECONDS, Roster
from inference.scheduler import Arrival, plan_batch, waiting_time
from inference.session import Opening, Session
from inference.times import ForwardTimes
from inference.tree import TokenTree

PREFILL_SHARE = 2.0
"""A chunk of a prompt may take this many times as long as a forward of those who decode meanwhile."""

LEAST_CHUNK = 16


class Turn(NamedTuple):
    """What goes into one forward: a tree, or a chunk of its prompt, of each session."""

    prefill: bool
    shares: list[tuple[Session, TokenTree]]


class Turns:
    """Decides forward by forward, from what forwards have cost so far."""

    def __init__(self, model: Model) -> None:
        self._model, self._times = model, ForwardTimes()
        self._filled_last = False
        self._idle = 0.0
        self._free_since: float | None = (
            None  # when somebody was first seen ready since the last forward
        )

    def next(self, working: Sequence[Session]) -> Turn:
        """Chunks and trees take turns when there are both, so that neither starves."""
        self._free_since = None
        in_order = sorted(working, key=lambda session: session.asked)
        filling = [session for session in in_order if session.missing]
        ready = [session for session in in_order if not session.missing]
        self._filled_last = bool(filling) and not (ready and self._filled_last)
        if self._filled_last:
            return Turn(True, self._chunks(filling, self._chunk_size(ready)))
        return Turn(False, self._trees(ready))

    def record(self, padded: tuple[int, int], seconds: float, idle: float) -> None:
        """A forward of this padded shape took so long, after so many seconds in which there was nothing to do."""
        self._times.record(*padded, seconds)
        self._idle += 0.2 * (idle - self._idle)

    def pause(self, roster: Roster, now: float) -> float | None:
        """Seconds to wait before the next step: None until something is asked, 0 not at all, else for company.

        At most a lone forward's time is waited once the target could go ahead. Sessions that were served together ask together
        again, so what a wait costs once is saved in every later round; what they waited for the forward before does not count.
        """
        working = roster.working
        if roster.closing or roster.movable:
            return 0.0
        if not working:
            self._free_since = None
            return SILENT_SECONDS if roster.in_line else None
        if any(session.missing or isinstance(session.work, Opening) for session in working):
            return 0.0
        nodes = max(session.wants for session in working)
        self._free_since = now if self._free_since is None else self._free_since
        patience = self._seconds(1, nodes) - (now - self._free_since)
        coming = (
            (session.expected_in(now), session)
            for session in roster.sessions
            if session.row is not None
        )
        arrivals = [
            Arrival(seconds, session.gain)
            for seconds, session in coming
            if seconds is not None and seconds <= patience
        ]
        if not arrivals:
            return 0.0
        return waiting_time(
            sum(session.gain for session in working), len(working), nodes, arrivals, self._seconds
        )

    def _chunk_size(self, ready: Sequence[Session]) -> int:
        """Prompt tokens in one forward: as many as the model takes, fewer while others decode."""
        most = self._model.max_nodes
        if ready:
            allowed = PREFILL_SHARE * self._seconds(
                len(ready), max(session.wants for session in ready)
            )
            while most > LEAST_CHUNK and self._seconds(1, most) > allowed:
                most //= 2
        return most

    def _chunks(self, filling: Sequence[Session], most: int) -> list[tuple[Session, TokenTree]]:
        """Prompts in order of arrival, as long as rows times the longest chunk stay within `most` tokens."""
        chunks: list[tuple[Session, TokenTree]] = []
        longest = 0
        for session in filling:
            longest = max(longest, min(most, session.missing))
            if chunks and longest * (len(chunks) + 1) > most:
                break
            chunks.append((session, TokenTree.chain(session.next_chunk(most))))
        return chunks

    def _trees(self, ready: Sequence[Session]) -> list[tuple[Session, TokenTree]]:
        """Trees of one kind, that of who asked first. Only plain ones are cut: what others ask must not change a text that was drawn at
        random, and a graph has its shape.
        """
        if not ready:
            return []
        ready = [session for session in ready if session.kind is ready[0].kind]
        if ready[0].kind is not TokenTree:
            return [(session, session.next_tree(session.wants)) for session in ready]
        batch = plan_batch(
            [session.survival.gains(session.wants) for session in ready], self._seconds, self._idle
        )
        return [(ready[index], ready[index].next_tree(batch.nodes)) for index in batch.members]

    def _seconds(self, rows: int, nodes: int) -> float:
        return self._times.seconds(*self._model.padded(rows, nodes))
