"""Passes a certificate, its key and a keys file to a target's host.

All three are created on this machine. They are passed in SecureString parameters, which only the
host's role and the account's administrators may read; the host deletes them once read. The keys
file has the SHA-256 of the client's token. A Hugging Face token is passed likewise, if needed.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from compile.aws import Aws, aws_refusals
from deploy.deployment import hub_token_parameter, secret_parameters
from grpc_comm.certificate import make_certificate
from grpc_comm.keys import make_key
from inference.errors import InvalidRequest
from inference.files.writing import replacing


class Credentials(NamedTuple):
    """The client's credentials: the certificate of the authority that it trusts, and its token."""

    ca: bytes
    token: bytes


class Handover:
    """The credentials for a host, in a directory that only its owner can read. The directory is
    kept until the host has the credentials, so an interrupted `up` continues with the same ones.
    """

    def __init__(self, target: str, directory: Path) -> None:
        self._target, self._directory = target, directory

    def begin(self, hosts: Sequence[str]) -> Credentials:
        """Make credentials for these host names and addresses, unless they exist already."""
        token = self._directory / "token"
        try:
            if not token.is_file():  # the token is written last
                shutil.rmtree(self._directory, ignore_errors=True)
                self._directory.mkdir(parents=True, mode=0o700)
                make_certificate(self._directory, list(hosts))
                key = make_key(self._directory / "keys.json", self._target)
                with replacing(token) as partial:
                    partial.chmod(0o600)
                    partial.write_text(key + "\n", encoding="utf-8")
            return Credentials((self._directory / "ca.pem").read_bytes(), token.read_bytes())
        except OSError as error:
            raise InvalidRequest(
                f"{self._directory}: cannot be written ({error.strerror})"
            ) from error

    def put(self, aws: Aws) -> None:
        """Upload the host's secrets to the parameters that the host reads."""
        files = ("cert.pem", "key.pem", "keys.json")
        for name, file in zip(secret_parameters(self._target), files, strict=True):
            _put(aws, name, (self._directory / file).read_text(encoding="utf-8"))

    def end(self) -> None:
        """Delete the local copy of the credentials."""
        shutil.rmtree(self._directory, ignore_errors=True)


def put_hub_token(aws: Aws, target: str) -> None:
    """Upload this machine's Hugging Face token to the parameter that the host reads."""
    from huggingface_hub import get_token

    _put(aws, hub_token_parameter(target), get_token() or "")


def _put(aws: Aws, name: str, secret: str) -> None:
    with aws_refusals():
        aws.client("ssm").put_parameter(
            Name=name, Value=secret, Type="SecureString", Overwrite=True
        )


def _all_parameters(target: str) -> list[str]:
    return [*secret_parameters(target), hub_token_parameter(target)]


def secrets_waiting(aws: Aws, target: str) -> list[str]:
    """Return the names of the parameters with secrets that the host has not read yet."""
    with aws_refusals():
        reply = aws.client("ssm").get_parameters(Names=_all_parameters(target))
    return sorted(row["Name"] for row in reply["Parameters"])


def withdraw_secrets(aws: Aws, target: str) -> None:
    """Delete the parameters that still exist."""
    with aws_refusals():
        aws.client("ssm").delete_parameters(Names=_all_parameters(target))
