"""Targets by name: `--target NAME` stands for an address, an authority and a token, stored in

    ~/.config/outrider/targets/NAME/    target.json, ca.pem, token; readable by the owner only

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
from inference.files.json_file import Record, Text, read_json, read_record, shown
from inference.files.writing import replacing

_NAME = re.compile(r"[a-z](-?[a-z0-9]){0,30}")


@dataclass(frozen=True)
class NamedTarget(Record):
    """A target's name and address. Raises InvalidRequest for an invalid name or address."""

    name: Text
    address: Text  # HOST:PORT; on this machine if a tunnel leads to the target
    region: Text  # AWS region

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
        """The file with the authority that signed the target's certificate."""
        return self.directory / "ca.pem"

    @property
    def token_file(self) -> Path:
        return self.directory / "token"

    @property
    def complete(self) -> bool:
        """Whether authority and token exist. The token is written last."""
        return self.ca_file.is_file() and self.token_file.is_file()

    def write(self) -> None:
        """Write target.json. Raises InvalidRequest if that fails."""
        self.write_secret("target.json", json.dumps(asdict(self), indent=1).encode())

    def write_secret(self, file: str, content: bytes) -> None:
        """Write a file of this target atomically, readable by its owner only."""
        path = self.directory / file
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.parent.chmod(0o700)
            with replacing(path) as partial:
                partial.chmod(0o600)
                partial.write_bytes(content)
        except OSError as error:
            raise InvalidRequest(f"{path}: cannot be written ({error.strerror})") from error


def targets_directory() -> Path:
    """Return $XDG_CONFIG_HOME/outrider/targets, or ~/.config/outrider/targets. It may not exist."""
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return config / "outrider" / "targets"


def check_name(name: object) -> str:
    """Return the name. Raises InvalidRequest if it is not valid for a target."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"a target's name has up to 31 lowercase letters, digits and single dashes, a letter "
            f"first: got {shown(name)[:42]}"
        )
    return name


def named_targets() -> list[str]:
    """Return the names of the targets that are configured on this machine."""
    return sorted(path.parent.name for path in targets_directory().glob("*/target.json"))


def find_target(name: str) -> NamedTarget | None:
    """Return the target with this name; None if there is no such target. Raises InvalidRequest for
    an invalid file.
    """
    path = targets_directory() / check_name(name) / "target.json"
    if not path.is_file():
        return None
    return read_record(read_json(path, InvalidRequest), NamedTarget)


def read_target(name: str) -> NamedTarget:
    """Return the target with this name. Raises InvalidRequest if there is no such target."""
    target = find_target(name)
    if target is None:
        names = named_targets()
        are = f"targets here: {', '.join(names)}" if names else "there is none here"
        raise InvalidRequest(
            f"there is no target {name} in {targets_directory()}{nearest(name, names)} ({are}; "
            "outrider deploy up creates one)"
        )
    return target


def forget_target(name: str) -> None:
    """Remove the files of the target with this name, if any."""
    shutil.rmtree(targets_directory() / check_name(name), ignore_errors=True)
