"""The file of a target's keys: parses it strictly, detects changes and appends keys.

It is JSON, with an entry for each tenant. The server's limit applies where an entry has none:

    {"keys": [{"name": "alice", "token_sha256": "<64 hexadecimal digits>", "sessions": 4,
               "sequence_length": 4096, "tree_nodes": 32, "message_bytes": 1048576,
               "nodes_per_second": 2000}]}
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import reprlib
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from grpc_comm.permissions import read_guarded
from inference.errors import InvalidRequest

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MOST = 2**63 - 1


@dataclass(frozen=True)
class Key:
    """A tenant and its limits. A limit of None is the server's own.

    A target without keys serves everyone as the tenant "". Raises InvalidRequest for a bad name or
    limit.
    """

    name: str
    sessions: int | None = None  # open at once
    sequence_length: int | None = None  # tokens, prompt and output together
    tree_nodes: int | None = None  # nodes of a session in a forward pass, the root included
    message_bytes: int | None = None  # of the longest message
    nodes_per_second: int | None = None  # candidates of all sessions together

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or (self.name and not _NAME.fullmatch(self.name)):
            need = "letters, digits, dots, dashes and underscores, a letter or digit first"
            raise InvalidRequest(f"a name is 1 to 64 {need}: got {_shown(self.name)}")
        for limit in LIMITS:
            value = getattr(self, limit)
            if value is not None and (type(value) is not int or not 1 <= value <= _MOST):
                need = "a whole number from 1 to 2^63 - 1, or left out"
                raise InvalidRequest(f"{limit} is {need}: got {_shown(value)}")


LIMITS = tuple(entry.name for entry in fields(Key) if entry.name != "name")


class KeyEntry(NamedTuple):
    digest: bytes  # SHA-256 of the token
    key: Key


class KeysFile:
    """A keys file, and the version of it that was read last.

    unread: that version could not be read; reading it again may succeed
    """

    def __init__(self, path: Path) -> None:
        self.path, self.unread = path, False
        self._seen: tuple[int, ...] | None = None

    @property
    def exists(self) -> bool:
        return bool(self._stamp())

    def changed(self) -> bool:
        return self.unread or self._stamp() != self._seen

    def read(self) -> tuple[KeyEntry, ...]:
        """Read the entries; raise InvalidRequest. An invalid version is not read again; one that
        could not be read is.
        """
        self._seen = self._stamp()  # before reading, so that a later write counts as a change
        try:
            entries, self.unread = _parse(self.path), False
        except InvalidRequest as error:
            self.unread = bool(self._seen) and isinstance(error.__cause__, OSError)
            raise
        return entries

    def _stamp(self) -> tuple[int, ...]:
        """Identify the version of the file; empty where there is no file."""
        try:
            status = os.stat(self.path)
        except OSError:
            return ()
        times = (status.st_mtime_ns, status.st_ctime_ns)
        return (*times, status.st_size, status.st_ino, status.st_mode)


def make_key(path: Path, name: str) -> str:
    """Append a key of this name to the file, and return its token, which is stored nowhere.

    The file is created where there is none. Raises InvalidRequest for a name that is taken or
    invalid, and for a file that is invalid or cannot be written.
    """
    if not name:
        raise InvalidRequest("a key needs a name: --name NAME")
    token = secrets.token_urlsafe(32)
    entry = KeyEntry(digest_of(token), Key(name))
    with _replacing(path) as replacement:
        entries = _parse(path) if path.exists() else ()
        if any(entry.key.name == name for entry in entries):
            remedy = "remove its entry first, or choose another name"
            raise InvalidRequest(f"{path}: a key named {name!r} exists already; {remedy}")
        replacement.write_text(_format([*entries, entry]), encoding="utf-8")
    return token


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yield a file for the next version, which then replaces `path` atomically.

    Only one process at a time may do so. Raises InvalidRequest.
    """
    following = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(following, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError as error:
        need = "another `outrider keys` is running; remove the file if none is"
        raise InvalidRequest(f"{following} exists: {need}") from error
    except OSError as error:
        raise InvalidRequest(f"{path}: cannot be written ({error.strerror})") from error
    try:
        yield following
        with suppress(FileNotFoundError):
            following.chmod(stat.S_IMODE(path.stat().st_mode))
        following.replace(path)
    except OSError as error:
        raise InvalidRequest(f"{path}: cannot be written ({error.strerror})") from error
    finally:
        following.unlink(missing_ok=True)


def digest_of(token: str | bytes) -> bytes:
    return hashlib.sha256(token.encode() if isinstance(token, str) else token).digest()


def _parse(path: Path) -> tuple[KeyEntry, ...]:
    document = _load(path)
    if not isinstance(document, Mapping) or set(document) != {"keys"}:
        raise InvalidRequest(f'{path}: a keys file is an object with one list, {{"keys": [...]}}')
    if not isinstance(document["keys"], list):
        kind = type(document["keys"]).__name__
        raise InvalidRequest(f'{path}: a keys file is an object with one list, "keys": got {kind}')
    entries: list[KeyEntry] = []
    for number, item in enumerate(document["keys"], 1):
        try:
            entries.append(_entry(item, entries))
        except InvalidRequest as error:
            raise InvalidRequest(f"{path}: entry {number}: {error}") from error
    return tuple(entries)


def _load(path: Path) -> Any:
    """Read the file's JSON; raise InvalidRequest where that fails.

    Others may read the file, because a digest does not reveal its token, but not write it.
    """
    try:
        return json.loads(read_guarded(path))
    except InvalidRequest:  # it is a ValueError, too
        raise
    except OSError as error:
        raise InvalidRequest(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{path}: is not JSON ({error})") from error


def _entry(item: Any, before: Iterable[KeyEntry]) -> KeyEntry:
    if not isinstance(item, Mapping):
        need = "an object is needed, with name and token_sha256"
        raise InvalidRequest(f"{need}: got {type(item).__name__}")
    unknown = [field for field in item if field not in ("name", "token_sha256", *LIMITS)]
    if unknown:
        fields = f"there are name, token_sha256, {', '.join(LIMITS)}"
        raise InvalidRequest(f"unknown {_shown(unknown[0])}: {fields}")
    digest = _digest(item.get("token_sha256"))
    values = {name: value for name, value in item.items() if name != "token_sha256"}
    key = Key(**{"name": "", **values})
    if not key.name:
        raise InvalidRequest("a name is needed")
    for known_entry in before:
        other = known_entry.key.name
        if other == key.name:
            raise InvalidRequest(f"an earlier entry has the same name {key.name!r}")
        if known_entry.digest == digest:
            need = "every key needs its own token"
            raise InvalidRequest(f"{key.name!r} has the same token as {other!r}: {need}")
    return KeyEntry(digest, key)


def _digest(value: Any) -> bytes:
    need = "the SHA-256 of the token, 64 hexadecimal digits in lower case"
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        got = f"{len(value)} characters" if isinstance(value, str) else type(value).__name__
        raise InvalidRequest(f"token_sha256 must be {need}: got {got}")  # it may be the token
    digest = bytes.fromhex(value)
    if digest == digest_of(""):
        remedy = "create a key with `outrider keys`"
        raise InvalidRequest(f"token_sha256 is the hash of an empty token: {remedy}")
    return digest


def _shown(value: Any) -> str:
    """Return a value for an error message: short, on one line, without control characters."""
    return reprlib.repr(value)


def _format(entries: Iterable[KeyEntry]) -> str:
    items = []
    for digest, key in entries:
        limits = {name: value for name, value in asdict(key).items() if value is not None}
        items.append({"name": limits.pop("name"), "token_sha256": digest.hex(), **limits})
    return json.dumps({"keys": items}, indent=2) + "\n"
