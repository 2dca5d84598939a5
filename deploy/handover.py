"""Passes a certificate, its key and a keys file to a target's host.

All three are created on this machine. They are passed in SecureString parameters, which only the
host's role and the account's administrators may read; the host deletes them once read. The keys
file has the SHA-256 of the client's token. A Hugging Face token is passed likewise, if needed.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from compile.aws import Aws, aws_refusals
from grpc_comm.certificate import make_certificate
from grpc_comm.client.named_targets import NamedTarget
from grpc_comm.keys import make_key
from inference.errors import InvalidRequest
from inference.files.writing import replacing


def secret_parameters(target: str) -> tuple[str, str, str]:
    """Return the SSM parameters for a target's certificate, its key and its keys file."""
    certificate, key, keys = (
        f"/outrider/{target}/{name}" for name in ("certificate", "key", "keys")
    )
    return certificate, key, keys


def hub_token_parameter(target: str) -> str:
    """Return the SSM parameter for the Hugging Face token, used if a host's model needs one."""
    return f"/outrider/{target}/hub_token"


def hand_over(aws: Aws, target: NamedTarget, hosts: Sequence[str]) -> None:
    """Pass the host its secrets, and store the target with the client's own on this machine.

    An interrupted handover continues with the same secrets, since the host may have read some.

    hosts: names and addresses for the certificate
    """
    directory = target.directory / "handover"
    _make_secrets(directory, target.name, hosts)
    files = ("cert.pem", "key.pem", "keys.json")
    for name, file in zip(secret_parameters(target.name), files, strict=True):
        _put(aws, name, (directory / file).read_text(encoding="utf-8"))
    target.write()
    for file in ("ca.pem", "token"):
        target.write_secret(file, (directory / file).read_bytes())
    shutil.rmtree(directory, ignore_errors=True)


def _make_secrets(directory: Path, target: str, hosts: Sequence[str]) -> None:
    """Make a certificate and a key in a directory that only its owner can read, unless they exist.
    The token is written last.
    """
    token = directory / "token"
    if token.is_file():
        return
    try:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True, mode=0o700)
        make_certificate(directory, list(hosts))
        key = make_key(directory / "keys.json", target)
        with replacing(token) as partial:
            partial.chmod(0o600)
            partial.write_text(key + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"{directory}: cannot be written ({error.strerror})") from error


def put_hub_token(aws: Aws, target: str) -> None:
    """Upload this machine's Hugging Face token to the parameter that the host reads."""
    from huggingface_hub import get_token

    _put(aws, hub_token_parameter(target), get_token() or "")


def _put(aws: Aws, name: str, secret: str) -> None:
    with aws_refusals():
        aws.client("ssm").put_parameter(
            Name=name, Value=secret, Type="SecureString", Overwrite=True
        )


def secrets_waiting(aws: Aws, target: str) -> list[str]:
    """Return the names of the parameters with secrets that the host has not read yet."""
    names = [*secret_parameters(target), hub_token_parameter(target)]
    with aws_refusals():
        reply = aws.client("ssm").get_parameters(Names=names)
    return sorted(row["Name"] for row in reply["Parameters"])


def withdraw_secrets(aws: Aws, target: str) -> None:
    """Delete the parameters that still exist."""
    names = [*secret_parameters(target), hub_token_parameter(target)]
    with aws_refusals():
        aws.client("ssm").delete_parameters(Names=names)
