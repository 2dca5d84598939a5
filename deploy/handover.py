"""Hands a target its certificate, key and keys file.

All three are made here. They go through SecureString parameters that the host's role alone may read
besides this account's administrators; the host deletes them when it has them. Of the client's token
the host gets the SHA-256. A token of the hub goes the same way, where a model needs one.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from compile.aws import Aws, aws_refusals
from deploy.deployment import hub_token_parameter, secret_parameters
from grpc_comm.certificate import make_certificate
from grpc_comm.keys_file import make_key
from inference.errors import InvalidRequest
from inference.files.writing import replacing


class Credentials(NamedTuple):
    """Credentials that the client keeps: the authority that it trusts, and its token."""

    ca: bytes
    token: bytes


class Handover:
    """Credentials that are on their way to a host, in a directory for their owner alone. It lasts
    until the host has them, so that an interrupted `up` hands over the same ones.
    """

    def __init__(self, target: str, directory: Path) -> None:
        self._target, self._directory = target, directory

    def begin(self, hosts: Sequence[str]) -> Credentials:
        """Make the credentials for these host names and addresses, unless they are there."""
        token = self._directory / "token"
        try:
            if not token.is_file():  # it is written last
                shutil.rmtree(self._directory, ignore_errors=True)
                self._directory.mkdir(parents=True, mode=0o700)
                make_certificate(self._directory, list(hosts))
                made = make_key(self._directory / "keys.json", self._target)
                with replacing(token) as part:
                    part.chmod(0o600)
                    part.write_text(made + "\n", encoding="utf-8")
            return Credentials((self._directory / "ca.pem").read_bytes(), token.read_bytes())
        except OSError as error:
            raise InvalidRequest(
                f"{self._directory}: cannot be written ({error.strerror})"
            ) from error

    def put(self, aws: Aws) -> None:
        """Put the host's part where the host reads it."""
        files = ("cert.pem", "key.pem", "keys.json")
        for name, file in zip(secret_parameters(self._target), files, strict=True):
            _put(aws, name, (self._directory / file).read_text(encoding="utf-8"))

    def end(self) -> None:
        """Forget the host's part here."""
        shutil.rmtree(self._directory, ignore_errors=True)


def put_hub_token(aws: Aws, target: str) -> None:
    """Put this machine's token of the hub where the host reads it."""
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
    """Parameters with secrets that the target's host has not taken."""
    with aws_refusals():
        reply = aws.client("ssm").get_parameters(Names=_all_parameters(target))
    return sorted(row["Name"] for row in reply["Parameters"])


def withdraw_secrets(aws: Aws, target: str) -> None:
    """Delete the parameters, where they are still there."""
    with aws_refusals():
        aws.client("ssm").delete_parameters(Names=_all_parameters(target))
