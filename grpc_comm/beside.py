"""The draft beside a target: what of it a client may ask for, and a held session that goes on with it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from grpc_comm import translate
from grpc_comm.leases import Held
from grpc_comm.proto import verifier_pb2 as pb
from inference.drafters.pool import DraftPool
from inference.errors import InvalidRequest
from inference.fused import Round, fused_rounds
from inference.local import HeldVerifier
from inference.policy import Policy
from inference.stats import Traffic


def asked_policy(
    request: pb.GenerateRequest | pb.Continue, drafts: DraftPool | None, max_tree_nodes: int
) -> Policy | None:
    """How the draft shall grow its trees (None: as it is set, or it is not asked for).

    Raises InvalidRequest where there is no draft that would do, or for a shape that means nothing, LimitExceeded for one that there is
    no room for.
    """
    if not request.fused:
        if request.HasField("shape"):
            raise InvalidRequest(
                "a shape is of the trees of the target's own draft: it goes with fused"
            )
        return None
    if drafts is None:
        raise InvalidRequest(
            "this target has no draft beside it: ask without one, or start it as --role fused_target"
        )
    if isinstance(request, pb.Continue) and not drafts.seeded:
        raise InvalidRequest(
            "the draft beside this target makes texts of its own, not the seeded one of the session: go on without it"
        )
    if not request.HasField("shape"):
        return None
    policy = translate.read_shape(request.shape, max_tree_nodes)
    drafts.check(policy)
    return policy


class Continuation:
    """Rounds of a held session with the host's own draft, which prefills the session's tokens; the target prefills nothing.

    A stop id within a round ends the answer there, while the session has committed what followed it: the client's next base length
    takes that back. Raises InvalidRequest or LimitExceeded for more tokens than fit.
    """

    def __init__(
        self, held: Held, policy: Policy | None, max_tokens: int, stop_ids: frozenset[int]
    ) -> None:
        held.session.check_room(max_tokens)
        assert held.drafts is not None, "asked_policy() comes first"
        self._session, self._drafts, self._left = held.session, held.drafts, held.left
        self._verifier = HeldVerifier(held.engine, held.session)
        self._policy, self._max_tokens, self._stop_ids = policy, max_tokens, stop_ids

    def run(self, tell: Callable[[pb.Tokens], None]) -> None:
        """All rounds, on a worker's thread; the one in hand is the last when held.left is set."""
        with closing(self._verifier), self._drafts.drafter(self._policy, self._left) as drafter:
            session, remaining = self._session, self._max_tokens
            for made in fused_rounds(
                list(session.tokens),
                session.params,
                drafter,
                self._verifier,
                remaining,
                self._stop_ids,
            ):
                remaining -= len(made.tokens)
                last = remaining <= 0 or made.tokens[-1] in self._stop_ids or self._left.is_set()
                tell(self._message(made, last))
                if last:
                    return

    def _message(self, made: Round, last: bool) -> pb.Tokens:
        spent, self._verifier.traffic = self._verifier.traffic, Traffic()
        return translate.write_tokens(
            made.tokens, made.drafted, last, spent.queue_seconds, spent.model_seconds
        )
