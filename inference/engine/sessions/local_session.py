"""A client's session with a target in the same process."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from inference.engine.engine import Engine
from inference.engine.sessions.session import Session
from inference.order import Decode, Progress, TokenLogProb
from inference.proposer import Nodes
from inference.sampling import SamplingParams
from inference.text_log import TextCopy, Traffic
from inference.tree.candidates import ProposalStream

IDLE_SECONDS = 0.01
"""Interval in seconds at which receive() checks an idle engine."""


class LocalSession:
    """A TargetSession (inference/loop/decode.py) that calls the engine directly.

    If no thread runs the engine, receive() runs the forward passes.
    """

    stream = 0
    _proposals: ProposalStream  # of the open session

    def __init__(self, engine: Engine, *, tenant: str = "") -> None:
        self.traffic = Traffic()
        self._engine, self._tenant = engine, tenant
        self._session: Session | None = None
        self._woken = threading.Event()
        self.next_number = 0
        self._text = TextCopy((), SamplingParams(), engine.vocabulary, self.traffic)

    def open(self, prompt: Sequence[int], params: SamplingParams) -> None:
        """Open the session and wait for the prefill. Raises the error if either fails."""
        self.close()
        session, future = self._engine.open(prompt, params, tenant=self._tenant)
        self._session, self.next_number = session, 0
        self._text = TextCopy(prompt, params, self._engine.vocabulary, self.traffic)
        self._proposals = self._engine.join(session)
        self._engine.listen(self._proposals, self._woken.set)
        self._engine.finish(future)
        self._text.take_opened(future.result())

    @property
    def prompt_logprobs(self) -> tuple[TokenLogProb, ...]:
        return self._text.prompt_logprobs

    def decode(self, order: Decode) -> None:
        self._engine.decode(self._live, order)
        self._text.set_order(order)

    def propose(self, nodes: Nodes) -> None:
        self.next_number = nodes.end
        self._engine.append(self._live, self._proposals, nodes)

    def go(self, base: int) -> None:
        self._engine.go(self._live, base)

    def receive(self, timeout: float) -> Progress | None:
        """Return new committed tokens, or the end; None after `timeout` seconds.

        With a timeout of 0, run no forward pass. Raises the error that ended the session.
        """
        deadline = time.perf_counter() + timeout
        while True:
            self._woken.clear()
            progress = self._engine.progress(self._live, self._text.length, self._proposals)
            if progress.tokens or progress.end is not self._text.end:
                self._text.take(progress)
                self._engine.acknowledge(self._live, self._text.length)
                return self._text.read()
            remaining = deadline - time.perf_counter()
            if remaining <= 0 or not self._advance(remaining):
                return None

    def close(self) -> None:
        if self._session is not None:
            self._engine.close(self._session)
            self._session = None

    def _advance(self, seconds: float) -> bool:
        """Wait for the engine's thread, or run a forward pass. Return False after a timeout."""
        if self._engine.running:
            return self._woken.wait(seconds)
        return self._engine.step() or self._woken.wait(min(seconds, IDLE_SECONDS)) or True

    @property
    def _live(self) -> Session:
        assert self._session is not None, "open() comes first"
        return self._session
