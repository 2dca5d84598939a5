"""Converts a target's description, sampling parameters, and messages that open a session, to and
from protobuf.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from grpc_comm.messages import read_logprobs, read_tokens, write_logprobs
from grpc_comm.proto import verifier_pb2 as pb
from inference.errors import InvalidRequest, LimitExceeded, Mismatch
from inference.order import Opened, Progress
from inference.proposer import MAX_CANDIDATES
from inference.sampling import Grammar, GrammarKind, SamplingParams

if TYPE_CHECKING:
    from inference.times import Shape

MAX_TIMES = 512

MAX_SCORE_BYTES = 2 * 2**20
"""Maximum size of a prompt's log-probabilities in bytes."""

_DIGEST = re.compile("[0-9a-f]{64}")  # SHA-256

MAX_CHARACTERS = 400
"""Maximum characters shown of a string that the other side sent."""

PROTOCOL_VERSION = 3

RULES_VERSION = 4
"""Protocol of an Open with parameters that protocol 3 lacks. A target of protocol 3 refuses this
number; otherwise it would ignore the parameters and generate different output.
"""

LENGTH_VERSION = 5
"""Protocol of an Open with a minimum length, which protocol 4 lacks."""

_PLAIN = ("temperature", "top_k", "top_p", "seed")  # parameters of protocol 3
_ALIKE = (
    *_PLAIN,
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "prompt_logprobs",
    "made",
    "min_tokens",
)


def check_protocol(theirs: int, supported: Iterable[int] = (PROTOCOL_VERSION,)) -> None:
    """Raise Mismatch if this side does not support the other side's protocol."""
    if theirs not in supported:
        raise Mismatch(
            f"the other side has protocol {theirs}, this side {PROTOCOL_VERSION}: install the "
            "same version of Outrider on both"
        )


def write_params(params: SamplingParams) -> dict[str, Any]:
    """Return fields of Open, protocol included; raise InvalidRequest if parameters do not fit into
    a message.
    """
    params = params.on_the_wire()
    if not params.end_ids:
        params = replace(params, min_tokens=0)
    if not (params.adjusts or params.prompt_logprobs):  # where the output starts has no effect
        params = replace(params, made=0)
    plain = {name: getattr(params, name) for name in _PLAIN}
    if params == SamplingParams(**plain):
        return {"protocol_version": PROTOCOL_VERSION, **plain}
    return {
        "protocol_version": LENGTH_VERSION if params.min_tokens else RULES_VERSION,
        **{name: getattr(params, name) for name in _ALIKE},
        "repetition_penalty": params.repetition_penalty,
        "bias_ids": [token for token, _ in params.logit_bias],
        "biases": [bias for _, bias in params.logit_bias],
        "grammar": _write_grammar(params.grammar),
        "logprobs": params.logprobs,
        "end_ids": params.end_ids if params.min_tokens else (),
    }


def read_params(message: pb.Open) -> SamplingParams:
    """Read the parameters; raise InvalidRequest if invalid, Mismatch for another protocol."""
    check_protocol(message.protocol_version, (PROTOCOL_VERSION, RULES_VERSION, LENGTH_VERSION))
    ids, biases = message.bias_ids, message.biases
    if len(ids) != len(biases):
        raise InvalidRequest(f"each biased token needs a bias: got {len(ids)} ids, {len(biases)}")
    return SamplingParams(
        **{name: getattr(message, name) for name in _ALIKE},
        repetition_penalty=message.repetition_penalty or 1.0,
        logit_bias=tuple(zip(ids, biases, strict=True)),
        grammar=_read_grammar(message.grammar) if message.HasField("grammar") else None,
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        end_ids=tuple(message.end_ids),
    )


def _write_grammar(grammar: Grammar | None) -> pb.Grammar | None:
    if grammar is None:
        return None
    return pb.Grammar(kind=grammar.kind.name, text=grammar.text)


def _read_grammar(message: pb.Grammar) -> Grammar:
    if message.kind not in pb.Grammar.Kind.values():
        kinds = ", ".join(pb.Grammar.Kind.keys())
        raise InvalidRequest(f"a grammar is one of {kinds}: got kind {message.kind}")
    return Grammar(GrammarKind[pb.Grammar.Kind.Name(message.kind)], message.text)


@dataclass(frozen=True)
class Description:
    """A target's description of itself for clients."""

    server_version: str
    model: str
    model_fingerprint: str
    tokenizer_fingerprint: str
    vocabulary: int  # number of token ids
    sequence_length: int
    max_tree_nodes: int  # maximum nodes of a session in a forward pass, root included
    rows: int
    dtype: str
    device: str
    stop_ids: frozenset[int]
    draft_model: str = ""  # the draft on the target's device, if any
    times: tuple[
        tuple[Shape, float], ...
        # seconds of a forward pass by (rows, nodes per row): dict(times) is a prior of Times
    ] = ()
    usd_per_hour: float = 0.0  # price of the target's machine; 0: not stated
    sessions: int = 0  # open now
    rules: bool = False  # supports grammars, penalties and biases, and reports log-probabilities
    emulated: bool = False  # forward passes take another device's times; cores stay free for drafts
    settings_digest: str = ""  # SHA-256 of tokenizer_settings; empty from an older target
    tokenizer_settings: bytes = b""  # see inference.text.tokenizer_settings; sent on request


class SessionTerms(NamedTuple):
    """The terms of an open session: how to resume it, and its limits."""

    session_id: str
    length: int  # tokens committed at the target
    lease_seconds: float  # how long the session is kept without a message
    tree_nodes: int  # maximum nodes in a forward pass, root included
    resume_key: bytes  # secret with which a client can resume the session
    candidates: int = MAX_CANDIDATES  # maximum stored candidates
    opened: Opened = Opened()


def write_description(description: Description, models: Sequence[str]) -> pb.Description:
    times = [
        pb.ForwardTime(rows=rows, nodes=nodes, seconds=seconds)
        for (rows, nodes), seconds in description.times
    ]
    fields = {
        **vars(description),
        "stop_ids": sorted(description.stop_ids),
        "times": times,
    }
    return pb.Description(protocol_version=PROTOCOL_VERSION, models=models, **fields)


def read_description(message: pb.Description) -> Description:
    """Read a target's description of itself.

    Raises Mismatch for another protocol, and for invalid times, prices or digests.
    """
    check_protocol(message.protocol_version)
    fields = {name: _shown(getattr(message, name)) for name in Description.__dataclass_fields__}
    fields["stop_ids"] = frozenset(message.stop_ids)
    fields["times"] = tuple(_read_times(message.times))
    if message.settings_digest and not _DIGEST.fullmatch(message.settings_digest):
        raise Mismatch(f"the target's digest of its settings is {plain(message.settings_digest)!r}")
    if not 0 <= message.usd_per_hour < math.inf:
        raise Mismatch(f"the target reports a price of ${message.usd_per_hour} an hour")
    return Description(**fields)


def plain(text: str) -> str:
    """Return the start of a received string, on a single line and without control characters."""
    return "".join(sign if sign.isprintable() else "?" for sign in text[:MAX_CHARACTERS])


def _shown(value: Any) -> Any:
    return plain(value) if isinstance(value, str) else value


def _read_times(messages: Sequence[pb.ForwardTime]) -> Iterator[tuple[Shape, float]]:
    if len(messages) > MAX_TIMES:
        raise Mismatch(f"the target reports {len(messages)} times: the maximum is {MAX_TIMES}")
    for time in messages:
        if min(time.rows, time.nodes) < 1 or not 0 < time.seconds < math.inf:
            raise Mismatch(
                f"the target reports {time.rows} rows of {time.nodes} nodes in {time.seconds} "
                "seconds"
            )
        yield (time.rows, time.nodes), time.seconds


def write_open(
    session_id: str, expected: Description, prompt: Sequence[int], params: SamplingParams
) -> pb.Open:
    """Write the message that opens a session.

    expected: the description that the target must match; it computes with `params.on_the_wire()`
    """
    return pb.Open(
        session_id=session_id,
        model_fingerprint=expected.model_fingerprint,
        tokenizer_fingerprint=expected.tokenizer_fingerprint,
        prompt=_ids(prompt),
        model=expected.model,
        **write_params(params),
    )


def write_opened(terms: SessionTerms) -> pb.Opened:
    fields = terms._asdict() | terms.opened._asdict() | write_logprobs(terms.opened.logprobs)
    del fields["opened"]
    return pb.Opened(**fields)


def read_opened(message: pb.Opened) -> SessionTerms:
    """Read the terms of an open session; raise Mismatch if values are out of bounds."""
    return SessionTerms(
        message.session_id,
        message.length,
        message.lease_seconds,
        message.tree_nodes,
        message.resume_key,
        min(message.candidates or MAX_CANDIDATES, MAX_CANDIDATES),
        Opened(
            message.reused_tokens,
            max(message.queue_seconds, 0.0),
            max(message.prefill_seconds, 0.0),
            read_logprobs(message),
        ),
    )


def read_answer(message: pb.ServerMessage) -> SessionTerms | Progress | str:
    """Read a target's message: Opened, Tokens, or the reason for GoAway.

    Raises Mismatch for a message that this protocol does not have.
    """
    kind = message.WhichOneof("kind")
    if kind == "tokens":
        return read_tokens(message.tokens)
    if kind == "opened":
        return read_opened(message.opened)
    if kind == "go_away":
        return plain(message.go_away.reason)
    raise Mismatch("sent a message that this version does not know")


def check_prompt(length: int, params: SamplingParams, sequence_length: int) -> None:
    """Raise LimitExceeded if a prompt leaves no room for output, or for its log-probabilities."""
    if length >= sequence_length:
        raise LimitExceeded(
            f"a prompt of {length} tokens leaves no room: the sequence length is "
            f"{sequence_length}, prompt and output together"
        )
    limit = MAX_SCORE_BYTES // (4 + 9 * (params.logprobs or 0))
    if params.prompt_logprobs and length > limit:
        raise LimitExceeded(
            f"log-probabilities of a prompt of {length} tokens: with {params.logprobs} "
            f"alternatives at each, the limit is {limit} tokens"
        )


def check_fingerprints(request: pb.Open, description: Description) -> None:
    """Raise Mismatch unless the client expects the tokenizer and model of this target."""
    if request.tokenizer_fingerprint != description.tokenizer_fingerprint:
        raise tokenizer_mismatch(request.tokenizer_fingerprint, description)
    if request.model_fingerprint != description.model_fingerprint:
        theirs, ours = request.model_fingerprint or "none", description.model_fingerprint
        raise Mismatch(
            f"the target serves {description.model} ({ours}), the client expects another model "
            f"({theirs}): reconnect"
        )


def tokenizer_mismatch(client: str, description: Description) -> Mismatch:
    """Return the error for a client and a target with different tokenizers."""
    ours = description.tokenizer_fingerprint
    return Mismatch(
        f"the tokenizers differ: the client's is {client or 'none'}, that of {description.model} "
        f"on the target is {ours}"
    )


def _ids(values: ArrayLike) -> list[int]:
    """Return token ids for a uint32 field; raise InvalidRequest for ids that do not fit.

    The target checks that the ids are in its vocabulary.
    """
    array = np.asarray(values)
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise InvalidRequest(f"token ids are integers: got {array.dtype}")
    if array.size and (array.min() < 0 or array.max() >= 2**32):
        raise InvalidRequest(
            f"token ids are 0 or more and fit 32 bits: got {array.min()} to {array.max()}"
        )
    ids: list[int] = array.tolist()
    return ids
