"""Our types into messages and back, our errors into gRPC status codes and back. Nothing else touches message fields."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import grpc
import numpy as np
from numpy.typing import ArrayLike

from grpc_comm.proto import verifier_pb2 as pb
from inference.accept import Verdict
from inference.errors import (
    Busy,
    Gone,
    InvalidRequest,
    LimitExceeded,
    Mismatch,
    OutriderError,
    Unavailable,
)
from inference.fused import Round
from inference.policy import BestFirst, Chain, Policy
from inference.sampling import SamplingParams
from inference.session import Answer, Opened
from inference.stats import Traffic
from inference.times import Shape
from inference.tree import TokenTree

PROTOCOL_VERSION = 2
MOST_STOP_IDS = 1024
MOST_TIMES = 512


@dataclass(frozen=True)
class Description:
    """What a target serves; `max_tree_nodes` counts the root, `vocabulary` the ids of the tokenizer."""

    server_version: str
    model: str
    model_fingerprint: str
    tokenizer_fingerprint: str
    vocabulary: int
    sequence_length: int
    max_tree_nodes: int
    rows: int
    dtype: str
    device: str
    stop_ids: frozenset[int]
    draft_model: str = ""  # that runs beside it
    draft_nodes: int = 0  # that one may rank for a tree (Policy.most_ranked)
    times: tuple[
        tuple[Shape, float], ...
    ] = ()  # seconds of a forward by rows and nodes of each: dict(times) is a profile for TargetTimes
    draft_times: tuple[
        tuple[int, float], ...
    ] = ()  # of a call of that draft by width, for DraftTimes
    usd_per_hour: float = 0.0  # of its machine; 0: not said
    sessions: int = 0  # that are open now


def write_description(description: Description, models: Sequence[str]) -> pb.Description:
    times = [
        pb.ForwardTime(rows=rows, nodes=nodes, seconds=seconds)
        for (rows, nodes), seconds in description.times
    ]
    draft_times = [
        pb.ForwardTime(rows=1, nodes=width, seconds=seconds)
        for width, seconds in description.draft_times
    ]
    fields = {
        **vars(description),
        "stop_ids": sorted(description.stop_ids),
        "times": times,
        "draft_times": draft_times,
    }
    return pb.Description(protocol_version=PROTOCOL_VERSION, models=models, **fields)


def read_description(message: pb.Description) -> Description:
    """Raises Mismatch when the target speaks another protocol, or tells times or a price that cannot be."""
    check_protocol(message.protocol_version)
    fields = {name: getattr(message, name) for name in Description.__dataclass_fields__}
    fields["stop_ids"] = frozenset(message.stop_ids)
    fields["times"] = tuple(_read_times(message.times))
    fields["draft_times"] = tuple(
        (width, seconds) for (_, width), seconds in _read_times(message.draft_times)
    )
    if not 0 <= message.usd_per_hour < math.inf:
        raise Mismatch(f"the target says that it costs ${message.usd_per_hour} an hour")
    return Description(**fields)


def _read_times(messages: Sequence[pb.ForwardTime]) -> Iterator[tuple[Shape, float]]:
    if len(messages) > MOST_TIMES:
        raise Mismatch(
            f"the target describes itself with {len(messages)} times: at most {MOST_TIMES} are read"
        )
    for one in messages:
        if min(one.rows, one.nodes) < 1 or not 0 < one.seconds < math.inf:
            raise Mismatch(
                f"the target says that {one.rows} rows of {one.nodes} nodes take {one.seconds} seconds"
            )
        yield (one.rows, one.nodes), one.seconds


def check_protocol(theirs: int) -> None:
    if theirs != PROTOCOL_VERSION:
        raise Mismatch(
            f"the other side speaks protocol {theirs}, this one {PROTOCOL_VERSION}: install the same Outrider on both"
        )


def write_open(
    session_id: str, expected: Description, prompt: Sequence[int], params: SamplingParams
) -> pb.Open:
    """Open a session with a target that is counted on to be as `expected`; it computes with `params.on_the_wire()`."""
    params = params.on_the_wire()
    return pb.Open(
        session_id=session_id,
        protocol_version=PROTOCOL_VERSION,
        model_fingerprint=expected.model_fingerprint,
        tokenizer_fingerprint=expected.tokenizer_fingerprint,
        prompt=_ids(prompt),
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        seed=params.seed,
        model=expected.model,
    )


def write_resume(session_id: str, resume_key: bytes, epoch: int) -> pb.Resume:
    return pb.Resume(
        session_id=session_id, protocol_version=PROTOCOL_VERSION, resume_key=resume_key, epoch=epoch
    )


def write_opened(
    session_id: str,
    length: int,
    opened: Opened,
    resume_key: bytes,
    lease_seconds: float,
    rounds: int,
    tree_nodes: int,
) -> pb.Opened:
    return pb.Opened(
        session_id=session_id,
        length=length,
        queue_seconds=opened.queue_seconds,
        prefill_seconds=opened.prefill_seconds,
        reused_tokens=opened.reused,
        resume_key=resume_key,
        lease_seconds=lease_seconds,
        rounds=rounds,
        tree_nodes=tree_nodes,
    )


def read_params(message: pb.Open) -> SamplingParams:
    return SamplingParams(message.temperature, message.top_k, message.top_p, message.seed)


def check_fingerprints(message: pb.Open, description: Description) -> None:
    """Raises Mismatch unless the client's tokenizer and model are those of this target."""
    check_protocol(message.protocol_version)
    if message.tokenizer_fingerprint != description.tokenizer_fingerprint:
        raise tokenizer_mismatch(message.tokenizer_fingerprint, description)
    if message.model_fingerprint != description.model_fingerprint:
        theirs, ours = message.model_fingerprint or "none", description.model_fingerprint
        raise Mismatch(
            f"the target serves {description.model} ({ours}), the client expects another model ({theirs}): connect anew"
        )


def tokenizer_mismatch(client: str, description: Description) -> Mismatch:
    """Token ids of two tokenizers mean different text, so nothing could be verified."""
    ours = description.tokenizer_fingerprint
    return Mismatch(
        f"the tokenizers differ: the client's is {client or 'none'}, that of {description.model} on the target is {ours}"
    )


def write_round(
    number: int, base_length: int, digest: int, tree: TokenTree, ahead: bool = False
) -> pb.Round:
    tokens, parents = tree.tokens.tolist(), tree.parents[1:].tolist()
    return pb.Round(
        number=number,
        base_length=base_length,
        digest=digest,
        tokens=tokens,
        parents=parents,
        ahead=ahead,
    )


def read_tree(message: pb.Round, max_nodes: int) -> TokenTree:
    """Raises InvalidRequest unless the message is a tree, LimitExceeded before looking into one that is too large."""
    if max(len(message.tokens), len(message.parents)) > max_nodes:
        raise LimitExceeded(
            f"a tree of {len(message.tokens)} nodes, the root included: at most {max_nodes} are taken"
        )
    return TokenTree(
        np.array(message.tokens, dtype=np.int64), np.array([-1, *message.parents], dtype=np.int64)
    )


def write_verdict(number: int, answer: Answer) -> pb.Verdict:
    return pb.Verdict(
        number=number,
        path=answer.verdict.path,
        next_token=answer.verdict.next_token,
        queue_microseconds=microseconds(answer.queue_seconds),
        model_microseconds=microseconds(answer.model_seconds),
        budget=answer.budget,
    )


def read_verdict(message: pb.Verdict, number: int, tree: TokenTree) -> Verdict:
    """Raises Mismatch when the target answers another round or names nodes that were not sent."""
    if message.number != number:
        raise Mismatch(f"the target answered round {message.number} when asked round {number}")
    if any(node >= len(tree) for node in message.path):
        raise Mismatch(
            f"the target accepted a node that was not sent: {max(message.path)} of {len(tree)}"
        )
    return Verdict(tuple(message.path), message.next_token)


def write_continue(
    max_tokens: int,
    stop_ids: Iterable[int],
    base_length: int,
    digest: int,
    fused: bool,
    policy: Policy | None,
) -> pb.Continue:
    """policy: how the target's own draft grows its trees (None: as it is set)."""
    message = pb.Continue(
        max_tokens=max_tokens,
        stop_ids=_ids(sorted(stop_ids)),
        base_length=base_length,
        digest=digest,
        fused=fused,
    )
    if policy is not None:
        message.shape.CopyFrom(write_shape(policy))
    return message


def write_shape(policy: Policy) -> pb.Shape:
    """Raises InvalidRequest for a policy that another host cannot be asked for."""
    if isinstance(policy, Chain) and policy.length:
        return pb.Shape(chain=policy.length)
    if isinstance(policy, BestFirst) and policy == BestFirst(policy.nodes, policy.depth):
        return pb.Shape(nodes=policy.nodes, depth=policy.depth)
    raise InvalidRequest(
        f"a target's own draft can be asked for a chain of 1 or more, or for a tree by nodes and depth: not for {policy}"
    )


def read_shape(message: pb.Shape, max_tree_nodes: int) -> Policy:
    """Raises InvalidRequest for what is neither a chain nor a tree, LimitExceeded for one that is larger than what is verified."""
    chain, nodes, depth = message.chain, message.nodes, message.depth
    if bool(chain) == bool(nodes or depth) or bool(nodes) != bool(depth):
        raise InvalidRequest(
            f"a shape is a chain, or nodes and depth: got chain {chain}, nodes {nodes}, depth {depth}"
        )
    if max(chain, nodes) >= max_tree_nodes:
        raise LimitExceeded(
            f"a tree of {max(chain, nodes)} nodes below the root: at most {max_tree_nodes - 1} are taken"
        )
    return Chain(chain) if chain else BestFirst(nodes, depth)


def write_tokens(
    ids: Iterable[int], drafted: int, last: bool, queue_seconds: float, model_seconds: float
) -> pb.Tokens:
    return pb.Tokens(
        ids=ids,
        last=last,
        queue_microseconds=microseconds(queue_seconds),
        model_microseconds=microseconds(model_seconds),
        drafted=drafted,
    )


def read_stop_ids(message: Sequence[int]) -> frozenset[int]:
    if len(message) > MOST_STOP_IDS:
        raise LimitExceeded(f"{len(message)} stop ids: at most {MOST_STOP_IDS} are taken")
    return frozenset(message)


def write_generated(
    made: Round, last: bool, traffic: Traffic, draft_seconds: float
) -> pb.Generated:
    return pb.Generated(
        ids=made.tokens,
        drafted=made.drafted,
        last=last,
        queue_microseconds=round(traffic.queue_seconds * 1e6),
        prefill_microseconds=round(traffic.prefill_seconds * 1e6),
        model_microseconds=round(traffic.model_seconds * 1e6),
        draft_microseconds=round(draft_seconds * 1e6),
    )


def write_generate(
    opening: pb.Open, max_tokens: int, stop_ids: Iterable[int], fused: bool, policy: Policy | None
) -> pb.GenerateRequest:
    """policy: how the target's own draft grows its trees; None: as the host is set."""
    shape = None if policy is None else write_shape(policy)
    return pb.GenerateRequest(
        open=opening,
        max_tokens=max_tokens,
        stop_ids=_ids(sorted(stop_ids)),
        fused=fused,
        shape=shape,
    )


def microseconds(seconds: float) -> int:
    """For a uint32 field, which holds 71 minutes."""
    return min(round(seconds * 1e6), 2**32 - 1)


def _ids(values: ArrayLike) -> list[int]:
    """For a uint32 field; the target checks against its vocabulary."""
    array = np.asarray(values)
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise InvalidRequest(f"token ids are integers: got {array.dtype}")
    if array.size and (array.min() < 0 or array.max() >= 2**32):
        raise InvalidRequest(
            f"token ids are 0 or more and fit 32 bits: got {array.min()} to {array.max()}"
        )
    ids: list[int] = array.tolist()
    return ids


_ERRORS: tuple[tuple[type[OutriderError], grpc.StatusCode], ...] = (
    (InvalidRequest, grpc.StatusCode.INVALID_ARGUMENT),  # LimitExceeded included
    (Mismatch, grpc.StatusCode.FAILED_PRECONDITION),
    (Busy, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (Gone, grpc.StatusCode.NOT_FOUND),
    (Unavailable, grpc.StatusCode.UNAVAILABLE),
    (OutriderError, grpc.StatusCode.INTERNAL),
)
"""Going out, the first kind that fits; coming back, the kind of that code. UNAUTHENTICATED only comes back."""


def status_code(error: OutriderError) -> grpc.StatusCode:
    return next(code for kind, code in _ERRORS if isinstance(error, kind))


def status_error(error: grpc.RpcError, unreachable: str) -> OutriderError:
    """Our error for a failed call; `unreachable` says in words what it means when the target did not answer at all."""
    code, details = error.code(), (error.details() or "").strip()
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return InvalidRequest(f"the target refuses this client: {details}")
    kind = {code: kind for kind, code in _ERRORS}.get(code, Unavailable)
    if kind is Unavailable or (kind is OutriderError and not details.startswith(FAULT)):
        reason = details.rpartition("last error: ")[2] or code.name
        return Unavailable(f"{unreachable} ({reason})")
    if kind is Busy:
        return Busy(details, _retry_after(error))
    return kind(details)


RETRY_AFTER = "retry-after-ms"
"""Trailing metadata of a call that was refused for lack of room."""


def _retry_after(error: grpc.RpcError) -> float:
    """Seconds."""
    metadata: tuple[tuple[str, str | bytes], ...] = tuple(error.trailing_metadata() or ())  # type: ignore[arg-type]  # the stubs' pairs are opaque
    given = next((str(value) for key, value in metadata if key == RETRY_AFTER), "")
    return int(given) / 1e3 if given.isdigit() else 1.0


FAULT = "a fault in the target"
"""How the line of an INTERNAL status of our own begins; gRPC has others."""
