"""Converts sampling parameters to and from fields of Open."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from grpc_comm.proto import verifier_pb2 as pb
from inference.errors import InvalidRequest, Mismatch
from inference.sampling import Grammar, GrammarKind, SamplingParams

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
