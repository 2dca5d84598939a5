"""Both models in one process: the Verifier of a target that lives here."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TypeVar

from inference.accept import Verdict
from inference.engine import Engine, TargetSession
from inference.errors import OutriderError
from inference.sampling import SamplingParams
from inference.stats import Traffic
from inference.tree import TokenTree

T = TypeVar("T")


class LocalVerifier:
    """A Verifier that calls the engine directly; its futures are done when they are returned."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._session: TargetSession | None = None
        self.traffic = Traffic()

    def open(self, prompt: Sequence[int], params: SamplingParams) -> Future[None]:
        self.close()
        return _done(lambda: self._open(prompt, params))

    def submit(self, tree: TokenTree) -> Future[Verdict]:
        return _done(lambda: self._live.verify(tree))

    def generate(self, max_tokens: int, stop_ids: frozenset[int]) -> Iterator[int]:
        for _ in range(max_tokens):
            token = self._live.step()
            yield token
            if token in stop_ids:
                return

    def close(self) -> None:
        if self._session is not None:
            self._engine.close(self._session)
            self._session = None

    def _open(self, prompt: Sequence[int], params: SamplingParams) -> None:
        self._session = self._engine.open(prompt, params)
        deque(self._session.prefill(), maxlen=0)

    @property
    def _live(self) -> TargetSession:
        assert self._session is not None, "open() comes first"
        return self._session


def _done(call: Callable[[], T]) -> Future[T]:
    future: Future[T] = Future()
    try:
        future.set_result(call())
    except OutriderError as error:
        future.set_exception(error)
    return future
