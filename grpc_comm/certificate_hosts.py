"""Hosts that a certificate is for."""

from __future__ import annotations

from pathlib import Path

from inference.errors import InvalidRequest, MissingExtra


def certificate_hosts(path: Path) -> tuple[str, ...]:
    """Names and addresses, at least one, of the first certificate in a PEM file.

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
    return tuple(str(name.value) for name in names)
