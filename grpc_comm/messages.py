"""Converts candidates, Decode orders and tokens to and from protobuf, and checks received data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from grpc_comm.proto import verifier_pb2 as pb
from inference.errors import InvalidRequest, LimitExceeded, Mismatch
from inference.order import Decode, End, Pace, Progress, TokenLogProb
from inference.proposer import COPY, MAX_CANDIDATES, MODEL, NOBODY, Nodes
from inference.sampling import MAX_LOGPROBS

MAX_STOP_IDS = 1024

CLIENT_KINDS = frozenset({MODEL, COPY})
"""Kinds of proposers that a client may name."""

_STEPS = 16.0  # byte values for each halving of a probability
_CHANCES = tuple(2.0 ** (-step / _STEPS) for step in range(256))


def write_nodes(nodes: Nodes) -> Iterator[pb.Nodes]:
    """Yield the candidates in one or more messages."""
    for start in range(0, len(nodes.tokens), MAX_CANDIDATES):
        chunk = slice(start, start + MAX_CANDIDATES)
        yield pb.Nodes(
            first=nodes.first + start,
            base=nodes.base,
            parents=nodes.parents[chunk],
            tokens=nodes.tokens[chunk],
            chances=bytes(map(_as_byte, nodes.chances[chunk])),
            proposer=nodes.proposer,
        )


def read_nodes(message: pb.Nodes) -> Nodes:
    """Read candidates; raise InvalidRequest or LimitExceeded for an invalid list of nodes."""
    count = len(message.tokens)
    if count > MAX_CANDIDATES:
        raise LimitExceeded(f"{count} nodes in a message: the maximum is {MAX_CANDIDATES}")
    if not count == len(message.parents) == len(message.chances):
        raise InvalidRequest(
            f"each node needs a token, a parent and a chance: got {count}, {len(message.parents)} "
            f"and {len(message.chances)}"
        )
    if message.proposer not in CLIENT_KINDS:
        raise InvalidRequest(f"a proposer is one of {sorted(CLIENT_KINDS)}: got {message.proposer}")
    if message.first + count >= 2**32:
        raise InvalidRequest("a stream has used up its numbers")
    parents = list(message.parents)
    if any(back > number for number, back in enumerate(parents, message.first)):
        raise InvalidRequest("a node's parent must have a number below its own, from 0")
    tokens, chances = list(message.tokens), [_CHANCES[byte] for byte in message.chances]
    return Nodes(message.base, message.first, parents, tokens, chances, message.proposer)


def _as_byte(chance: float) -> int:
    """Return -16 log2(chance) as a byte. Values that are no probability count as the minimum."""
    if not 0 < chance <= 1:
        return 0 if chance > 1 else 255
    return min(round(-_STEPS * math.log2(chance)), 255)


def write_decode(order: Decode) -> pb.Decode:
    pace = pb.Decode.Pace.Name(order.pace.value)
    return pb.Decode(**{**vars(order), "stop_ids": sorted(order.stop_ids), "pace": pace})


def read_decode(message: pb.Decode) -> Decode:
    """Read a Decode message. Raises InvalidRequest or LimitExceeded if it is invalid."""
    if len(message.stop_ids) > MAX_STOP_IDS:
        raise LimitExceeded(f"{len(message.stop_ids)} stop ids: the maximum is {MAX_STOP_IDS}")
    if message.pace not in pb.Decode.Pace.values():
        raise InvalidRequest(f"a pace is GO_ON or WAIT: got {message.pace}")
    stop_ids, pace = frozenset(message.stop_ids), Pace(message.pace)
    return Decode(message.end, stop_ids, pace, message.credit, message.beside)


_NUMBERS = ("position", "known", "held", "nodes", "forwards", "lone", "room")
_TIMES = ("queue", "model", "share")


def write_tokens(progress: Progress, end: End) -> pb.Tokens:
    """Write a session's progress.

    end: why the session has ended or is paused
    """
    has_proposers = any(kind != NOBODY for kind in progress.proposers)
    seconds = {f"{of}_microseconds": getattr(progress, f"{of}_seconds") for of in _TIMES}
    return pb.Tokens(
        ids=progress.tokens,
        proposers=bytes(progress.proposers) if has_proposers else b"",
        end=pb.Tokens.End.Name(end.value),
        **{name: getattr(progress, name) for name in _NUMBERS},
        **{name: round(value * 1e6) for name, value in seconds.items()},
        **write_logprobs(progress.logprobs),
    )


def read_tokens(message: pb.Tokens) -> Progress:
    """Read a session's progress; raise Mismatch if the message is invalid."""
    if len(message.proposers) not in (0, len(message.ids)):
        raise Mismatch(f"sent {len(message.ids)} tokens and proposers of {len(message.proposers)}")
    if message.end not in pb.Tokens.End.values():
        raise Mismatch(f"ended its text for an unknown reason ({message.end})")
    return Progress(
        tokens=tuple(message.ids),
        proposers=tuple(message.proposers) or (NOBODY,) * len(message.ids),
        end=End(message.end),
        logprobs=read_logprobs(message),
        **{name: getattr(message, name) for name in _NUMBERS},
        **{f"{of}_seconds": getattr(message, f"{of}_microseconds") / 1e6 for of in _TIMES},
    )


def write_logprobs(scores: Sequence[TokenLogProb]) -> dict[str, Any]:
    """Return the log-probability fields of Tokens or Opened."""
    return {
        "logprobs": [score.value for score in scores],
        "top_ids": [token for score in scores for token in score.ids],
        "top_logprobs": [value for score in scores for value in score.values],
    }


MAX_LOGPROB = 1e-5
"""The maximum log-probability that a target may report: 0, plus float32's rounding error."""


def read_logprobs(message: pb.Tokens | pb.Opened) -> tuple[TokenLogProb, ...]:
    """Read log-probabilities; raise Mismatch if they are invalid."""
    values, ids, likeliest = message.logprobs, message.top_ids, message.top_logprobs
    width, remainder = divmod(len(ids), len(values) or 1)
    if len(ids) != len(likeliest) or remainder or width > MAX_LOGPROBS or (width and not values):
        got = f"{len(values)} tokens, and {len(ids)} alternatives with {len(likeliest)} values"
        raise Mismatch(f"sent log-probabilities of mismatched lengths: of {got}")
    if not all(map(math.isfinite, (*values, *likeliest))):
        raise Mismatch("sent a log-probability that is no number")
    if any(value > MAX_LOGPROB for value in (*values, *likeliest)):
        raise Mismatch(f"sent a log-probability above 0: {max(*values, *likeliest):g}")
    alternatives = [slice(at * width, (at + 1) * width) for at in range(len(values))]
    return tuple(
        TokenLogProb(value, tuple(ids[chunk]), tuple(likeliest[chunk]))
        for value, chunk in zip(values, alternatives, strict=True)
    )
