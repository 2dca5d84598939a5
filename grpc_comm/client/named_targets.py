"""Targets by name: `--target NAME` stands for an address, an authority and a token, which lie in

    ~/.config/outrider/targets/NAME/    target.json, ca.pem, token; for their owner alone

`outrider deploy up` writes them, `outrider deploy down` removes them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from grpc_comm.transport import Address, parse_address
from inference.command import nearest
from inference.errors import InvalidRequest
from inference.file_model import Record, Text, read_record
from inference.files import replacing
from inference.json_file import read_json, shown

_NAME = re.compile(r"[a-z](-?[a-z0-9]){0,30}")


@dataclass(frozen=True)
class NamedTarget(Record):
    """Address of a target by its name. Raises InvalidRequest for what is no name or no address."""

    name: Text
    address: Text  # HOST:PORT; on this machine where a tunnel leads to the target
    region: Text  # of AWS

    def __post_init__(self) -> None:
        check_name(self.name)
        parse_address(self.address)

    @property
    def reached(self) -> Address:
        return parse_address(self.address)

    @property
    def directory(self) -> Path:
        return targets_directory() / self.name

    @property
    def ca_file(self) -> Path:
        """The authority that signed the target's certificate."""
        return self.directory / "ca.pem"

    @property
    def token_file(self) -> Path:
        return self.directory / "token"

    @property
    def complete(self) -> bool:
        """Whether authority and token are there. The token is written last."""
        return self.ca_file.is_file() and self.token_file.is_file()

    def write(self) -> None:
        """Keep it. Raises InvalidRequest where that cannot be written."""
        self.write_secret("target.json", json.dumps(asdict(self), indent=1).encode())

    def write_secret(self, file: str, content: bytes) -> None:
        """Write a file of this target, which only its owner may read, whole or not at all."""
        path = self.directory / file
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.parent.chmod(0o700)
            with replacing(path) as part:
                part.chmod(0o600)
                part.write_bytes(content)
        except OSError as error:
            raise InvalidRequest(f"{path}: cannot be written ({error.strerror})") from error


def targets_directory() -> Path:
    """$XDG_CONFIG_HOME/outrider/targets, or ~/.config/outrider/targets. It may not exist."""
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return config / "outrider" / "targets"


def check_name(name: object) -> str:
    """The name. Raises InvalidRequest where a target cannot have it."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"a target's name has up to 31 small letters, digits and single dashes, a letter "
            f"first: got {shown(name)[:42]}"
        )
    return name


def named_targets() -> list[str]:
    """Names of the targets that are known here."""
    return sorted(path.parent.name for path in targets_directory().glob("*/target.json"))


def find_target(name: str) -> NamedTarget | None:
    """The target of this name; None where none is known here. Raises InvalidRequest for a file
    that cannot be used.
    """
    path = targets_directory() / check_name(name) / "target.json"
    if not path.is_file():
        return None
    return read_record(read_json(path, InvalidRequest), NamedTarget)


def read_target(name: str) -> NamedTarget:
    """The target of this name. Raises InvalidRequest where none is known here."""
    target = find_target(name)
    if target is None:
        known = named_targets()
        are = f"known here: {', '.join(known)}" if known else "none is known here"
        raise InvalidRequest(
            f"there is no target {name} in {targets_directory()}{nearest(name, known)} ({are}; "
            "outrider deploy up makes one)"
        )
    return target


def forget_target(name: str) -> None:
    """Remove what is kept of the target of this name, if anything is."""
    shutil.rmtree(targets_directory() / check_name(name), ignore_errors=True)
