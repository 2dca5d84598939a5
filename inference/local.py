"""Both models in one process: the Verifier of a target that lives here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from inference.accept import Verdict
from inference.decode import never
from inference.engine import Engine
from inference.errors import InvalidRequest, OutriderError
from inference.policy import Policy
from inference.sampling import SamplingParams
from inference.session import Answer, Session, promise
from inference.stats import Traffic
from inference.tree import TokenTree

T = TypeVar("T")


class LocalVerifier:
    """A Verifier that calls the engine directly; its futures are done when they are returned."""

    def __init__(self, engine: Engine, *, tenant: str = "", limit: int | None = None) -> None:
        self._engine, self._tenant, self._limit = engine, tenant, limit
        self._session: Session | None = None
        self.traffic = Traffic()
        self.tree_budget = engine.max_tree_nodes

    def open(self, prompt: Sequence[int], params: SamplingParams) -> Future[None]:
        self.close()
        return _done(lambda: self._open(prompt, params))

    def submit(self, tree: TokenTree, assumed: Sequence[int] | None = None) -> Future[Verdict]:
        assert assumed is None, "no verdict of this target is ever under way"
        return _done(lambda: self._verify(tree))

    def generate(
        self,
        max_tokens: int,
        stop_ids: frozenset[int],
        *,
        fused: bool = False,
        policy: Policy | None = None,
        enough: Callable[[], bool] = never,
    ) -> Iterator[int]:
        if fused:
            raise InvalidRequest("no draft runs beside this target")
        for _ in range(max_tokens):
            token = self._verify(TokenTree.chain([self._live.root])).next_token
            yield token
            if token in stop_ids or enough():
                return

    def close(self) -> None:
        if self._session is not None:
            self._engine.close(self._session)
            self._session = None

    def _open(self, prompt: Sequence[int], params: SamplingParams) -> None:
        self._session, future = self._engine.open(
            prompt, params, tenant=self._tenant, limit=self._limit
        )
        opened = self._wait(future)
        self.traffic.queue_seconds += opened.queue_seconds
        self.traffic.prefill_seconds += opened.prefill_seconds

    def _verify(self, tree: TokenTree) -> Verdict:
        began = time.perf_counter()
        answer: Answer = self._wait(self._engine.verify(self._live, tree))
        self.traffic.away_seconds += time.perf_counter() - began
        self.traffic.queue_seconds += answer.queue_seconds
        self.traffic.model_seconds += answer.model_seconds
        self.tree_budget = answer.budget
        return answer.verdict

    def _wait(self, future: Future[Any]) -> Any:
        self._engine.finish(future)
        return future.result()

    @property
    def _live(self) -> Session:
        assert self._session is not None, "open() comes first"
        return self._session


class HeldVerifier(LocalVerifier):
    """The Verifier of a session that is open already; closed, it leaves the session open."""

    def __init__(self, engine: Engine, session: Session) -> None:
        super().__init__(engine)
        self._session = session

    def open(self, prompt: Sequence[int], params: SamplingParams) -> Future[None]:
        """Goes on from all of its tokens, which `prompt` are."""
        return _done(lambda: None)

    def close(self) -> None:
        self._session = None


def _done(call: Callable[[], T]) -> Future[T]:
    future: Future[T] = promise()
    try:
        future.set_result(call())
    except OutriderError as error:
        future.set_exception(error)
    return future
