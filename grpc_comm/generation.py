"""Generate at the target: a text made on a thread of its own, round by round onto the wire."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Executor
from contextlib import ExitStack

from grpc_comm import translate
from grpc_comm.beside import asked_policy
from grpc_comm.catalogue import Served
from grpc_comm.feed import Feed
from grpc_comm.keys import Key
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.translate import Description
from inference.errors import InvalidRequest
from inference.fused import Round, StopwatchDrafter, fused_rounds, target_rounds
from inference.local import LocalVerifier


class GenerationCall:
    """One call. What it raises is the call's status; leaving messages() early ends the session."""

    def __init__(
        self,
        key: Key,
        served: Served,
        description: Description,
        request: pb.GenerateRequest,
        tenant: str,
    ) -> None:
        translate.check_fingerprints(request.open, description)
        self.key, self._served = key, served
        self._params, self._prompt = translate.read_params(request.open), list(request.open.prompt)
        served.engine.check(self._prompt, description.sequence_length)
        if not 1 <= request.max_tokens <= description.sequence_length - len(self._prompt):
            room = description.sequence_length - len(self._prompt)
            raise InvalidRequest(
                f"max_tokens must be 1 to {room} after this prompt: got {request.max_tokens}"
            )
        self._policy = asked_policy(request, served.drafts, description.max_tree_nodes)
        self._request, self._stop_ids = request, translate.read_stop_ids(request.stop_ids)
        self._verifier = LocalVerifier(
            served.engine, tenant=tenant, limit=description.sequence_length
        )
        self._draft: StopwatchDrafter | None = None
        self._left = threading.Event()

    async def messages(self, workers: Executor) -> AsyncIterator[pb.Generated]:
        """What the rounds bring, as it comes; they are made on one of the workers."""
        feed: Feed[tuple[Round, bool]] = Feed()
        feed.follow(asyncio.get_running_loop().run_in_executor(workers, self._work, feed))
        try:
            last = False
            while not last:
                made, last = await feed.get()
                yield self._message(made, last)
        finally:
            self._left.set()
            self._verifier.close()

    def _work(self, feed: Feed[tuple[Round, bool]]) -> None:
        with ExitStack() as stack:
            stack.callback(self._verifier.close)
            left = self._request.max_tokens
            for made in self._rounds(stack):
                left -= len(made.tokens)
                feed.put((made, left <= 0 or made.tokens[-1] in self._stop_ids))
                if self._left.is_set():
                    return

    def _rounds(self, stack: ExitStack) -> Iterator[Round]:
        most = self._request.max_tokens
        if not self._request.fused:
            return target_rounds(self._prompt, self._params, self._verifier, most, self._stop_ids)
        assert self._served.drafts is not None
        self._draft = StopwatchDrafter(
            stack.enter_context(self._served.drafts.drafter(self._policy, self._left))
        )
        return fused_rounds(
            self._prompt, self._params, self._draft, self._verifier, most, self._stop_ids
        )

    def _message(self, made: Round, last: bool) -> pb.Generated:
        draft_seconds = self._draft.seconds if self._draft else 0.0
        return translate.write_generated(made, last, self._verifier.traffic, draft_seconds)
