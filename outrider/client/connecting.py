"""Connects a client to the target that its flags name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from grpc_comm.client.connection import CONNECT_SECONDS, Connection, connect, list_models
from grpc_comm.client.patience import Patience
from grpc_comm.unanswered import refuses
from inference.command import say
from inference.errors import Mismatch, Unavailable
from inference.text import Tokenizer
from outrider.options.network import ConnectionOptions


@contextmanager
def connect_target(
    options: ConnectionOptions, tokenizer: Tokenizer | None, name: str = "the model here"
) -> Iterator[Connection]:
    """Connect to the target at --target_host and --port.

    A model that is named may have to be loaded there first. That is waited for as long as
    --patience says. Raises Mismatch where token ids do not mean the same on both sides.

    tokenizer: None where any will do
    name: the model whose tokenizer this is
    """
    seconds = max(CONNECT_SECONDS, options.patience) if options.model_name else CONNECT_SECONDS
    check_listening(options)
    with ExitStack() as stack:
        target = stack.enter_context(
            connect(
                options.addresses,
                security=options.security,
                model=options.model_name or "",
                timeout=seconds,
                patience=Patience(options.patience, say),
            )
        )
        there = target.description
        if tokenizer and tokenizer.fingerprint() != there.tokenizer_fingerprint:
            raise Mismatch(
                f"the tokenizers differ: {name} has {tokenizer.vocabulary} tokens, {there.model} "
                f"on the target {there.vocabulary}; take a draft of the target's own family"
            )
        yield target


def check_listening(options: ConnectionOptions) -> None:
    """Raise Unavailable, with the command that helps, where the target would be on this machine and
    nobody listens.
    """
    places = [endpoint.address for endpoint in options.endpoints]
    if not all(refuses(place) for place in places):
        return
    start = f"target --port {places[0].port}"
    command = f"deploy tunnel {options.target}" if options.target else start
    raise Unavailable(
        f"no Outrider target answers at {options.addresses}: connection refused; "
        f"start it with `outrider {command}`"
    )


def print_models(options: ConnectionOptions) -> None:
    """Print the names of the models that the target lists."""
    print(*list_models(options.addresses, security=options.security), sep="\n")
