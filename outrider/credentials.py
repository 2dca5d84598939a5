"""Commands that create credentials: cert (self-signed, for TLS) and keys (a token)."""

from __future__ import annotations

from pathlib import Path

from grpc_comm import keys
from grpc_comm.certificate import make_certificate
from inference.command import say
from outrider.options.tool_roles import MakeCertRole, MakeKeyRole


def make_cert(options: MakeCertRole) -> int:
    """Write a self-signed authority, and a certificate for --host signed by it."""
    hosts = list(dict.fromkeys([options.host, "localhost", "127.0.0.1"]))
    files = make_certificate(Path(options.out), hosts)
    say(
        f"target: --tls_cert {files.certificate} --tls_key {files.key}\ndraft:  --tls_ca {files.ca}"
    )
    return 0


def make_key(options: MakeKeyRole) -> int:
    """Add a key to --keys_file and print its token, which is stored nowhere."""
    token = keys.make_key(Path(options.keys_file), options.name)
    say(
        f"added {options.name}; its token is shown only once, limits can be added to the entry in "
        f"{options.keys_file}:"
    )
    print(token)
    return 0
