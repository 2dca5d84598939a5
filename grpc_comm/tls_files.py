"""Checks the content of TLS files: gRPC does not report what is wrong with them."""

from __future__ import annotations

import ssl
from pathlib import Path

from grpc_comm.security import SecurityOptions
from inference.errors import InvalidRequest

_MISMATCH = "KEY_VALUES_MISMATCH"


class _Encrypted(Exception):
    """Raised where a private key asks for a passphrase."""


def check_tls_files(options: SecurityOptions) -> None:
    """Raise InvalidRequest, naming the file and what is wrong with it."""
    if options.tls_ca is not None:
        _check_certificates(options.tls_ca, "--tls_ca")
    if options.tls_cert is not None and options.tls_key is not None:
        _check_certificates(options.tls_cert, "--tls_cert")
        _check_key(options.tls_key, options.tls_cert)


def _check_certificates(path: Path, flag: str) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(path)
    except OSError as error:
        raise _refusal(f"{flag} {path}", "a certificate", error) from error


def _check_key(key: Path, certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("DEFAULT@SECLEVEL=0")  # the other side decides how strong a key must be
    try:
        context.load_cert_chain(certificate, key, _refuse_passphrase)
    except _Encrypted as error:
        need = "this private key is encrypted; one without a passphrase is needed"
        raise InvalidRequest(f"--tls_key {key}: {need}") from error
    except OSError as error:
        if isinstance(error, ssl.SSLError) and error.reason == _MISMATCH:
            need = f"this must be the private key of the certificate in {certificate}"
            raise InvalidRequest(f"--tls_key {key}: {need}, but the two do not match") from error
        raise _refusal(f"--tls_key {key}", "a private key", error) from error


def _refuse_passphrase() -> str:
    raise _Encrypted


def _refusal(file: str, needed: str, error: OSError) -> InvalidRequest:
    if not isinstance(error, ssl.SSLError):
        return InvalidRequest(f"{file}: cannot be read ({error.strerror})")
    return InvalidRequest(f"{file}: {needed} in PEM form is needed, but the file has none")
