"""What a certificate says: for which hosts it is, and from when to when it holds."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from inference.errors import InvalidRequest, MissingExtra


class CertificateFacts(NamedTuple):
    """What a certificate says."""

    hosts: tuple[str, ...]  # names and addresses, at least one
    begins: datetime  # with its time zone, as `ends`
    ends: datetime


def read_certificate(path: Path) -> CertificateFacts:
    """The facts of the first certificate in a PEM file.

    Raises InvalidRequest where there is none, and MissingExtra without `cryptography`.
    """
    try:
        from cryptography import x509
    except ImportError as error:
        raise MissingExtra(
            "reading a certificate needs the cryptography package: pip install 'outrider[tls]'"
        ) from error
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except OSError as error:
        raise InvalidRequest(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, x509.ExtensionNotFound) as error:
        raise InvalidRequest(f"{path}: a certificate with host names is needed there") from error
    hosts = tuple(str(name.value) for name in names)
    return CertificateFacts(hosts, found.not_valid_before_utc, found.not_valid_after_utc)
