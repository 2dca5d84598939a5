"""The way to a target: what the flags of a client say about where it is and how to ask it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from grpc_comm.client import CONNECT_SECONDS, Connection, connect, list_models
from grpc_comm.remote import Patience
from grpc_comm.transport import Address
from inference.text import Tokenizer
from outrider.models import client_security
from outrider.options.network import ConnectionOptions
from outrider.profiles import say


@contextmanager
def connect_target(options: ConnectionOptions, tokenizer: Tokenizer) -> Iterator[Connection]:
    """The target at --target_host and --port; token ids mean the same on both sides, or nothing is
    sent.

    A model that is named may have to be loaded there first: that is waited for as long as
    --patience says.
    """
    seconds = max(CONNECT_SECONDS, options.patience) if options.model_name else CONNECT_SECONDS
    with connect(
        _addresses(options),
        security=client_security(options),
        tokenizer_fingerprint=tokenizer.fingerprint(),
        model=options.model_name or "",
        timeout=seconds,
        patience=Patience(options.patience, say),
    ) as target:
        yield target


def print_models(options: ConnectionOptions) -> None:
    """The names of the models that the target lists."""
    print(*list_models(_addresses(options), security=client_security(options)), sep="\n")


def _addresses(options: ConnectionOptions) -> str:
    return ",".join(_address(host.strip(), options.port) for host in options.target_host.split(","))


def _address(host: str, port: int) -> str:
    named = host.startswith("[") or host.count(":") == 1  # HOST:PORT or [IPv6]:PORT
    return host if named else str(Address(host, port))
