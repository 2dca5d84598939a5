"""A target's certificate and keys: who may read them, and how long they hold."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

from grpc_comm.certificate_facts import read_certificate
from grpc_comm.keys import Keys
from grpc_comm.security import read_token, server_security
from grpc_comm.tls_files import check_tls_files
from grpc_comm.transport import Address
from outrider.doctor.findings import Finding, fault, warning
from outrider.doctor.host import TargetHost
from outrider.peer_security import server_security as security_options

_SOON = timedelta(days=21)
_RENEW = "make a new one (outrider cert, or your authority), and restart the target"


def check_certificates(host: TargetHost) -> Iterator[Finding]:
    """Files, modes, whether the key is the certificate's, and its time."""
    options = host.options
    security = security_options(options)
    check_tls_files(security)
    server_security(security, Address(options.host, options.port))
    if options.tls_cert is None:
        yield Finding("certificate", f"none: {options.host} is reached from this machine alone")
        return
    facts = read_certificate(Path(options.tls_cert))
    said = f"{options.tls_cert} is for {', '.join(facts.hosts)}, until {facts.ends:%Y-%m-%d}"
    now = datetime.now(timezone.utc)
    if now < facts.begins:
        clock = "set the clock, or wait"
        yield fault("certificate", f"{said}; it begins {facts.begins:%Y-%m-%d %H:%M} UTC", clock)
    elif now >= facts.ends:
        yield fault("certificate", f"{said}: it has ended", _RENEW)
    else:
        soon = facts.ends - now < _SOON
        yield warning("certificate", said, _RENEW) if soon else Finding("certificate", said)


def check_keys(host: TargetHost) -> Iterator[Finding]:
    """The keys file or the token, read as the target reads them."""
    options = host.options
    if options.keys_file is not None:
        Keys.read(Path(options.keys_file))
        yield Finding("keys", f"{options.keys_file} can be used")
    elif options.token_file is not None:
        read_token(Path(options.token_file))
        yield Finding("keys", f"{options.token_file} holds one token for all")
    else:
        yield Finding("keys", "none: whoever reaches the port may call")
