"""Security of a target and its clients, from their options: proofs of who they are."""

from __future__ import annotations

from pathlib import Path

from grpc_comm.security import SecurityOptions
from outrider.options.network import ConnectionOptions, ListeningOptions, TlsOptions


def server_security(options: ListeningOptions) -> SecurityOptions:
    """The files by which a target proves who it is, and checks whom it serves."""
    return SecurityOptions(
        **_files(options, "tls_cert", "tls_key", "tls_ca", "token_file", "keys_file"),
        tls=False,
        insecure=options.insecure,
    )


def client_security(options: ConnectionOptions) -> SecurityOptions:
    """The files by which a client proves who it is, and checks whom it trusts."""
    return SecurityOptions(
        **_files(options, "tls_cert", "tls_key", "tls_ca", "token_file"),
        tls=options.tls,
        insecure=options.insecure,
    )


def _files(options: TlsOptions, *names: str) -> dict[str, Path]:
    return {name: Path(value) for name in names if (value := getattr(options, name))}
