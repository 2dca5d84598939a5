"""What a stream says: Opened, then the session's tokens from a cursor on, as they are committed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future

from grpc_comm import messages
from grpc_comm.proto import verifier_pb2 as pb
from inference.engine.engine import Engine
from inference.engine.session import Opened, Session
from inference.errors import Unavailable
from inference.order import End, Progress

Send = Callable[[pb.ServerMessage], Awaitable[None]]

HEARTBEAT_SECONDS = 1.0
"""A target that has nothing to tell says so often that it is there."""

MOST_STEP_SECONDS = 30.0
"""An engine whose step takes longer does not work: its clients hear no more that it is there."""


class Sender:
    """Writes what lies beyond a cursor: a client that reads slowly gets fewer and longer messages.

    stream: of the proposals that its client appends.  cursor: tokens that the client has.
    owner: a target that goes away ends the session with this stream.
    """

    def __init__(
        self, engine: Engine, session: Session, stream: int, cursor: int, send: Send, *, owner: bool
    ) -> None:
        self._engine, self._session, self._stream = engine, session, stream
        self._cursor, self._send, self._owner = cursor, send, owner
        self._loop, self._woken = asyncio.get_running_loop(), asyncio.Event()
        self._said, self._spoke_at = End.NOT, self._loop.time()
        self._leaving: pb.GoAway | None = None
        self.drained = False

    def wake(self) -> None:
        """There may be something to tell. From any thread."""
        self._loop.call_soon_threadsafe(self._woken.set)

    def leave(self, message: pb.GoAway) -> None:
        """Tell the client to go elsewhere, after what the forward in hand brings."""
        self._leaving = message
        self._woken.set()

    async def run(self, opened: pb.Opened) -> None:
        """Returns when the session is drained; raises what ended it."""
        await self._send(pb.ServerMessage(opened=opened))
        self._engine.listen(self._session, self._stream, self.wake)
        self._woken.set()
        while not self.drained:
            await self._news()
            if self._leaving is not None:
                await self._go_away(self._leaving)
            await self._tell()

    async def until_open(self, opening: Future[Opened]) -> Opened:
        """The prompt is prefilled; the client is told meanwhile that the target is there."""
        prefilled = asyncio.wrap_future(opening)
        prefilled.add_done_callback(lambda done: done.cancelled() or done.exception())  # looked at
        while not prefilled.done():
            await asyncio.wait({prefilled}, timeout=HEARTBEAT_SECONDS)
            if self._leaving is not None:
                raise Unavailable("this target is about to end")
            if not prefilled.done():
                await self._tell()
        return prefilled.result()

    async def _news(self) -> None:
        """Wait until there may be some, or it is time to say something."""
        due = self._spoke_at + HEARTBEAT_SECONDS
        timer = self._loop.call_at(due, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            timer.cancel()
        self._woken.clear()

    async def _go_away(self, message: pb.GoAway) -> None:
        self._leaving = None
        await self._send(pb.ServerMessage(go_away=message))
        if self._owner:
            self._engine.drain(self._session)
        else:
            self.drained = True

    async def _tell(self) -> None:
        progress = self._engine.progress(self._session, self._cursor, self._stream)
        due = self._loop.time() >= self._spoke_at + HEARTBEAT_SECONDS
        alive = self._engine.step_seconds < MOST_STEP_SECONDS
        if not (progress.tokens or progress.end is not self._said or (due and alive)):
            return
        self._spoke_at = self._loop.time()
        end = self._standing(progress)
        await self._send(pb.ServerMessage(tokens=messages.write_tokens(progress, end)))
        self._cursor += len(progress.tokens)
        self._said = progress.end
        self.drained = self.drained or progress.end is End.DRAINED

    def _standing(self, progress: Progress) -> End:
        """The end, or why nothing comes at present."""
        session = self._session
        if progress.end is not End.NOT or session.order is None or session.opening is not None:
            return progress.end
        if session.allowed == 0:
            return End.CREDIT
        return End.EVICTED if session.row is None else End.NOT
