"""Writes the messages of a stream: Opened, then the session's tokens from a cursor on as they are
committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from grpc_comm import messages, translate
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.translate import SessionTerms
from inference.engine.engine import Engine
from inference.engine.sessions.session import Session
from inference.order import End, Progress
from inference.tree.candidates import ProposalStream

Send = Callable[[pb.ServerMessage], Awaitable[None]]

HEARTBEAT_SECONDS = 1.0
"""Seconds between heartbeats if a target has nothing else to send."""

MAX_STEP_SECONDS = 30.0
"""Seconds of a step after which an engine counts as hung: its clients receive no heartbeats."""


def is_hung(engine: Engine) -> bool:
    """Return whether the current step takes so long that no more tokens are expected."""
    return engine.step_seconds > MAX_STEP_SECONDS


class Sender:
    """Writes the tokens after a cursor. A client that reads slowly gets fewer, longer messages.

    stream: the client's stream of proposals
    cursor: number of tokens that the client has
    """

    _heartbeat: asyncio.TimerHandle  # wakes run() when a heartbeat may be due

    def __init__(
        self, engine: Engine, session: Session, stream: ProposalStream, cursor: int, send: Send
    ) -> None:
        self._engine, self._session, self._stream = engine, session, stream
        self._cursor, self._send = cursor, send
        self._loop, self._woken = asyncio.get_running_loop(), asyncio.Event()
        self._sent_end, self._sent_at = End.NOT, self._loop.time()
        self._leaving: pb.GoAway | None = None
        self.drained = False

    def _wake(self) -> None:
        """Wake run(), from any thread, because there may be something to write."""
        self._loop.call_soon_threadsafe(self._woken.set)

    def ask_to_leave(self, message: pb.GoAway) -> None:
        """Ask the client to leave after it has received the tokens of the current forward pass."""
        self._leaving = message
        self._woken.set()

    async def run(self, terms: SessionTerms) -> None:
        """Write until the session is drained; raise the error that ended it."""
        await self._send(pb.ServerMessage(opened=translate.write_opened(terms)))
        self._engine.listen(self._stream, self._wake)
        self._plan_heartbeat()
        try:
            while not self.drained:
                await self._woken.wait()
                self._woken.clear()
                if self._leaving is not None:
                    await self._go_away(self._leaving)
                await self._send_progress()
        finally:
            self._heartbeat.cancel()

    def _plan_heartbeat(self) -> None:
        """Wake run() now, and again whenever a heartbeat may be due."""
        self._woken.set()
        now, due = self._loop.time(), self._sent_at + HEARTBEAT_SECONDS
        self._heartbeat = self._loop.call_at(
            due if due > now else now + HEARTBEAT_SECONDS, self._plan_heartbeat
        )

    async def _go_away(self, message: pb.GoAway) -> None:
        self._leaving = None
        await self._send(pb.ServerMessage(go_away=message))
        self._engine.drain(self._session)

    async def _send_progress(self) -> None:
        progress = self._engine.progress(self._session, self._cursor, self._stream)
        due = self._loop.time() >= self._sent_at + HEARTBEAT_SECONDS
        alive = due and not is_hung(self._engine)
        if not (progress.tokens or progress.end is not self._sent_end or alive):
            return
        self._sent_at = self._loop.time()
        end = self._end_or_pause(progress)
        await self._send(pb.ServerMessage(tokens=messages.write_tokens(progress, end)))
        self._cursor += len(progress.tokens)
        self._sent_end = progress.end
        self.drained = self.drained or progress.end is End.DRAINED

    def _end_or_pause(self, progress: Progress) -> End:
        session = self._session
        if progress.end is not End.NOT or session.order is None or session.opening is not None:
            return progress.end
        if session.allowed == 0:
            return End.CREDIT
        return End.EVICTED if session.row is None else End.NOT
