"""Keys of callers and their limits: bearer tokens, stored as SHA-256 digests in a keys file only.

The file is JSON, with an entry for each tenant. Limits that an entry omits default to the server's:

    {"keys": [{"name": "alice", "token_sha256": "<64 hexadecimal digits>", "sessions": 4,
               "sequence_length": 4096, "tree_nodes": 32, "message_bytes": 1048576,
               "nodes_per_second": 2000}]}

A changed file applies from the next call on, and to open streams within a second. If the new file
is missing or invalid, this is logged, and the earlier keys stay valid.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field

from grpc_comm.security import read_guarded
from inference.errors import InvalidRequest
from inference.files.json_file import Record, parse_json, read_record, shown

log = logging.getLogger(__name__)

SINGLE_TENANT = "default"
"""The tenant of all clients that use the token of a --token_file."""

WATCH_SECONDS = 0.4
"""Seconds between checks of the keys file, and between checks of a stream's key. The sum of both is
below a second.
"""

Metadata = Iterable[tuple[str, str | bytes]]

_SCHEME = b"Bearer "
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")

Limit = Annotated[int, Field(ge=1, le=2**63 - 1)] | None


@dataclass(frozen=True)
class Key(Record):
    """A tenant and its limits. None means the server's limit.

    A target without keys serves all clients as the tenant "". Raises InvalidRequest for a bad name.
    """

    name: str
    sessions: Limit = None  # open at the same time
    sequence_length: Limit = None  # tokens, prompt and output together
    tree_nodes: Limit = None  # nodes of a session in a forward pass, root included
    message_bytes: Limit = None  # size of a message
    nodes_per_second: Limit = None  # candidates sent, all sessions together

    def __post_init__(self) -> None:
        if self.name and not _NAME.fullmatch(self.name):
            need = "letters, digits, dots, dashes and underscores, a letter or digit first"
            raise InvalidRequest(f"a name is 1 to 64 {need}: got {shown(self.name)}")


def _check_digest(value: Any) -> str:
    need = "it must be the SHA-256 of the token, 64 hexadecimal digits in lower case"
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        got = f"{len(value)} characters" if isinstance(value, str) else type(value).__name__
        raise ValueError(f"{need}: got {got}")  # never the value: it may be the token
    if bytes.fromhex(value) == hashlib.sha256().digest():
        raise ValueError("the hash of an empty token: create a key with `outrider keys`")
    return value


@dataclass(frozen=True, kw_only=True)
class _Entry(Key):
    name: Annotated[str, Field(min_length=1)]
    token_sha256: Annotated[str, BeforeValidator(_check_digest)]

    def key_entry(self) -> KeyEntry:
        key = asdict(self)
        return KeyEntry(bytes.fromhex(key.pop("token_sha256")), Key(**key))


@dataclass(frozen=True)
class _Document(Record):
    keys: tuple[_Entry, ...]


class KeyEntry(NamedTuple):
    digest: bytes  # SHA-256 of the token
    key: Key


class KeysFile:
    """A keys file, and the file version that was read last.

    unread: whether that version could not be read, so that reading it again may succeed
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
        """Read the entries; raise InvalidRequest. A file that could not be read is read again; an
        invalid file is not, until it changes.
        """
        self._seen = self._stamp()  # before reading, so that a later write counts as a change
        try:
            entries, self.unread = _parse(self.path), False
        except InvalidRequest as error:
            self.unread = bool(self._seen) and isinstance(error.__cause__, OSError)
            raise
        return entries

    def _stamp(self) -> tuple[int, ...]:
        """Return values that identify the file's version; empty if there is no file."""
        try:
            status = os.stat(self.path)
        except OSError:
            return ()
        times = (status.st_mtime_ns, status.st_ctime_ns)
        return (*times, status.st_size, status.st_ino, status.st_mode)


def make_key(path: Path, name: str) -> str:
    """Append a key with this name to the file, and return its token, which is not stored.

    Creates the file if it does not exist. Raises InvalidRequest for a name that is taken or
    invalid, and for a file that is invalid or cannot be written.
    """
    if not name:
        raise InvalidRequest("a key needs a name: --name NAME")
    token = secrets.token_urlsafe(32)
    entry = KeyEntry(hashlib.sha256(token.encode()).digest(), Key(name))
    with _replacing(path) as replacement:
        entries = _parse(path) if path.exists() else ()
        if any(entry.key.name == name for entry in entries):
            remedy = "remove its entry first, or choose another name"
            raise InvalidRequest(f"{path}: a key named {name!r} exists already; {remedy}")
        replacement.write_text(_format([*entries, entry]), encoding="utf-8")
    return token


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file, which then replaces `path` atomically.

    Raises InvalidRequest, also if another process is replacing the file.
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


def _parse(path: Path) -> tuple[KeyEntry, ...]:
    """Read the entries; raise InvalidRequest.

    Other users may read the file, because a digest does not reveal its token, but not write it.
    """
    try:
        content = read_guarded(path)
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from error
    document = read_record(parse_json(content, path, InvalidRequest), _Document)
    names, digests = dict[str, str](), dict[str, str]()
    for entry in document.keys:
        if entry.name in names:
            raise InvalidRequest(f"{path} has two keys with the name {entry.name!r}")
        if owner := digests.get(entry.token_sha256):
            raise InvalidRequest(
                f"{path}: {owner!r} and {entry.name!r} have the same token: every key needs its own"
            )
        names[entry.name] = digests[entry.token_sha256] = entry.name
    return tuple(entry.key_entry() for entry in document.keys)


def _format(entries: Iterable[KeyEntry]) -> str:
    items = []
    for digest, key in entries:
        limits = {name: value for name, value in asdict(key).items() if value is not None}
        items.append({"name": limits.pop("name"), "token_sha256": digest.hex(), **limits})
    return json.dumps({"keys": items}, indent=2) + "\n"


class Keys:
    """A target's keys. Not thread-safe: used on the server's event loop only."""

    def __init__(self, entries: tuple[KeyEntry, ...] | None, file: KeysFile | None = None) -> None:
        # None: no token is required. Empty: every call is refused.
        self.entries, self._file = entries, file

    @classmethod
    def open(cls) -> Keys:
        """Return keys that need no token: every caller is the tenant "", with server limits."""
        return cls(None)

    @classmethod
    def single(cls, token: str) -> Keys:
        """Return keys with one token for all clients; raise InvalidRequest if it is empty."""
        if not token:
            raise InvalidRequest("the token is empty")
        return cls((KeyEntry(hashlib.sha256(token.encode()).digest(), Key(SINGLE_TENANT)),))

    @classmethod
    def read(cls, path: Path) -> Keys:
        """Read the keys of a file. watch() follows its changes.

        Raises InvalidRequest, which names the file, the entry and what is needed.
        """
        file = KeysFile(path)
        return cls(file.read(), file)

    @property
    def required(self) -> bool:
        """Whether callers need a token."""
        return self.entries is not None

    def grant(self, metadata: Metadata | None) -> Grant | None:
        """Return the rights of a call with this metadata; None if the call must be refused."""
        self.reload()
        digest = _digest(metadata)
        key = self.of(digest)
        return None if key is None else Grant(self, digest, key)

    def of(self, digest: bytes | None) -> Key | None:
        """Return the key with this token digest; None without such a key, or without a token.

        Compares every digest in constant time, so that the time taken reveals nothing about a
        token.
        """
        if self.entries is None:
            return _EVERYONE
        if digest is None:
            return None
        match = None
        for entry in self.entries:
            if hmac.compare_digest(entry.digest, digest):
                match = entry.key
        return match

    async def watch(self) -> None:
        """Check the file for changes forever, even while there are no calls."""
        while self._file is not None:
            self.reload()
            await asyncio.sleep(WATCH_SECONDS)

    def reload(self) -> None:
        """Load the file's new content if it has changed and is valid."""
        if self._file is None or not self._file.changed():
            return
        unread = self._file.unread
        try:
            self.entries = self._file.read()
        except InvalidRequest as error:
            if not (unread and self._file.unread):  # log a repeated read error once
                self._log_failure(error)
        else:
            log.info("read %d keys from %s", len(self.entries), self._file.path)

    def _log_failure(self, error: InvalidRequest) -> None:
        assert self._file is not None
        if self._file.exists:
            log.error("the keys are unchanged: %s", error)
        else:
            count = len(self.entries or ())
            warning = f"the keys file {self._file.path} is missing; its {count} keys stay valid"
            log.error('%s: restore it, or write {"keys": []} there to refuse all calls', warning)


_EVERYONE = Key("")


class Grant:
    """The rights of a call, according to the current keys."""

    def __init__(self, keys: Keys, digest: bytes | None, key: Key) -> None:
        self._keys, self._digest, self._key = keys, digest, key
        self._entries, self._withdrawn = keys.entries, False

    @property
    def key(self) -> Key:
        """The key with its current limits; once it is withdrawn, with its last limits."""
        self._refresh()
        return self._key

    @property
    def withdrawn(self) -> bool:
        """Whether the token was revoked or reassigned, so that the call must end."""
        self._refresh()
        return self._withdrawn

    def _refresh(self) -> None:
        if self._withdrawn or self._entries is self._keys.entries:
            return
        self._entries = self._keys.entries
        key = self._keys.of(self._digest)
        if key is None or key.name != self._key.name:
            self._withdrawn = True
        else:
            self._key = key


def _digest(metadata: Metadata | None) -> bytes | None:
    """Return the SHA-256 digest of a call's token; None for a call without a token, with an empty
    one, or with several headers.
    """
    headers = [value for name, value in metadata or () if name == "authorization"]
    values = [value.encode() if isinstance(value, str) else value for value in headers]
    if len(values) != 1 or not values[0].startswith(_SCHEME):
        return None
    token = values[0][len(_SCHEME) :]
    return hashlib.sha256(token).digest() if token else None
