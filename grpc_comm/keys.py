"""Who may call, and how much each caller may ask for: bearer tokens, known by their SHA-256 digests only.

A keys file is JSON, one entry a tenant; what an entry leaves out is the server's own limit:

    {"keys": [{"name": "alice", "token_sha256": "<64 hexadecimal digits>", "sessions": 4, "sequence_length": 4096,
               "tree_nodes": 32, "message_bytes": 1048576}]}

A changed file takes effect with the next call. One that cannot be used is logged, and the keys before it stay.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from inference.errors import InvalidRequest

log = logging.getLogger(__name__)

SINGLE_TENANT = "default"
"""The tenant of everyone who has the token of a --token_file."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SCHEME = "Bearer "


@dataclass(frozen=True)
class Key:
    """A tenant and its limits; None: the server's own. The tenant "" is everyone, on a target that asks nobody.

    sessions: open at once.  sequence_length: tokens, prompt and output together.  tree_nodes: the root included.
    message_bytes: the longest message.
    """

    name: str
    sessions: int | None = None
    sequence_length: int | None = None
    tree_nodes: int | None = None
    message_bytes: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or (self.name and not _NAME.fullmatch(self.name)):
            raise InvalidRequest(
                f"a name is 1 to 64 letters, digits, dots, dashes and underscores, a letter or digit first: got {self.name!r}"
            )
        for limit in _LIMITS:
            value = getattr(self, limit)
            if value is not None and (type(value) is not int or value < 1):
                raise InvalidRequest(
                    f"{limit} is a whole number from 1, or left out: got {value!r}"
                )


_LIMITS = tuple(entry.name for entry in fields(Key) if entry.name != "name")


class _Entry(NamedTuple):
    digest: bytes  # SHA-256 of the token
    key: Key


class Keys:
    """The keys that a target knows. Not thread-safe: asked on the server's loop only."""

    def __init__(self, entries: tuple[_Entry, ...] | None, source: _Source | None = None) -> None:
        self._entries, self._source = (
            entries,
            source,
        )  # without entries (None) nobody is asked; with none of them () nobody is let in

    @classmethod
    def open(cls) -> Keys:
        """Nobody is asked: everyone is the tenant "", without limits of its own."""
        return cls(None)

    @classmethod
    def single(cls, token: str) -> Keys:
        """One token for all; raises InvalidRequest for an empty one."""
        if not token:
            raise InvalidRequest("a token is needed: got an empty one")
        return cls((_Entry(_digest(token), Key(SINGLE_TENANT)),))

    @classmethod
    def read(cls, path: Path) -> Keys:
        """The keys of a file, which is watched from here on; raises InvalidRequest naming file, entry and what is needed."""
        source = _Source(path)
        return cls(source.read(), source)

    @property
    def demanded(self) -> bool:
        """Callers are asked for a token."""
        return self._entries is not None

    def identify(self, metadata: Iterable[tuple[str, str | bytes]] | None) -> Key | None:
        """Whose token a call's metadata carries; None: refuse the call.

        Every digest is compared, each in constant time, so that how long it takes says nothing about any token.
        """
        self._follow()
        if self._entries is None:
            return _EVERYONE
        found, given = None, _digest(_bearer(metadata or ()))
        for entry in self._entries:
            if hmac.compare_digest(entry.digest, given):
                found = entry.key
        return found

    def _follow(self) -> None:
        """Take the file's new content, if there is any and it can be used."""
        if self._source is None or not self._source.changed():
            return
        try:
            self._entries = self._source.read()
        except InvalidRequest as error:
            log.error("the keys stay as they were: %s", error)
        else:
            log.info("%d keys are read from %s", len(self._entries), self._source.path)


_EVERYONE = Key("")


class _Source:
    """A keys file, and which version of it was read last."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, ...] | None = None

    def changed(self) -> bool:
        return self._stamp() != self._seen

    def read(self) -> tuple[_Entry, ...]:
        """Raises InvalidRequest; a version that cannot be used is not tried again."""
        self._seen = (
            self._stamp()
        )  # before the content: what is written meanwhile shows as a change
        return _parse(self.path)

    def _stamp(self) -> tuple[int, ...] | None:
        try:
            status = os.stat(self.path)
        except OSError:
            return ()
        return status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode


def make_key(path: Path, name: str) -> str:
    """Append a key of this name to the file, which is made if need be, and return its token; it is stored nowhere.

    Raises InvalidRequest for a name that is taken or cannot be one, and when the file cannot be used or written.
    """
    if not name:
        raise InvalidRequest("a key needs a name: --name NAME")
    token = secrets.token_urlsafe(32)
    entry = _Entry(_digest(token), Key(name))
    with _replacing(path) as replacement:
        entries = _parse(path) if path.exists() else ()
        if any(known.key.name == name for known in entries):
            raise InvalidRequest(
                f"{path}: there is a key of the name {name!r} already; remove its entry first, or choose another name"
            )
        replacement.write_text(_format([*entries, entry]), encoding="utf-8")
    return token


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A file to write the next version into, which takes the path's place at once and whole; at most one process is at it."""
    following = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(following, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError as error:
        raise InvalidRequest(
            f"{following} exists: another make-key is at work; remove the file if none is"
        ) from error
    except OSError as error:
        raise InvalidRequest(f"{path}: cannot be written ({error.strerror})") from error
    try:
        yield following
        with suppress(FileNotFoundError):
            following.chmod(stat.S_IMODE(path.stat().st_mode))
        following.replace(path)
    finally:
        following.unlink(missing_ok=True)


def _digest(token: str | bytes) -> bytes:
    return hashlib.sha256(token.encode() if isinstance(token, str) else token).digest()


def _bearer(metadata: Iterable[tuple[str, str | bytes]]) -> bytes:
    """The one token that a call carries; empty when there is none, or more than one header says so."""
    given = [
        value.encode() if isinstance(value, str) else value
        for name, value in metadata
        if name == "authorization"
    ]
    scheme = _SCHEME.encode()
    return given[0][len(scheme) :] if len(given) == 1 and given[0].startswith(scheme) else b""


def _parse(path: Path) -> tuple[_Entry, ...]:
    document = _load(path)
    if (
        not isinstance(document, Mapping)
        or set(document) != {"keys"}
        or not isinstance(document["keys"], list)
    ):
        raise InvalidRequest(f'{path}: a keys file is an object with one list, {{"keys": [...]}}')
    entries: list[_Entry] = []
    for number, item in enumerate(document["keys"], 1):
        try:
            entries.append(_entry(item, entries))
        except InvalidRequest as error:
            raise InvalidRequest(f"{path}: entry {number}: {error}") from error
    return tuple(entries)


def _load(path: Path) -> Any:
    """Others who may write the file could let themselves in; it may be read by anyone, for no token follows from a digest."""
    try:
        if os.name == "posix" and os.stat(path).st_mode & stat.S_IWOTH:
            raise InvalidRequest(
                f"{path}: every user of this machine may write it, and so let anyone in: chmod o-w {path}"
            )
        return json.loads(path.read_bytes())
    except OSError as error:
        raise InvalidRequest(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{path}: is not JSON ({error})") from error


def _entry(item: Any, before: Iterable[_Entry]) -> _Entry:
    if not isinstance(item, Mapping):
        raise InvalidRequest(
            f"an object is needed, with name and token_sha256: got {type(item).__name__}"
        )
    unknown = set(item) - {"name", "token_sha256", *_LIMITS}
    if unknown:
        raise InvalidRequest(
            f"unknown {', '.join(sorted(unknown))}: there are name, token_sha256, {', '.join(_LIMITS)}"
        )
    digest = item.get("token_sha256")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise InvalidRequest(
            "token_sha256 must be the SHA-256 of the token, 64 hexadecimal digits in lower case"
        )
    key = Key(
        **{"name": "", **{name: value for name, value in item.items() if name != "token_sha256"}}
    )
    if not key.name:
        raise InvalidRequest("a name is needed")
    entry = _Entry(bytes.fromhex(digest), key)
    for known in before:
        if known.key.name == key.name:
            raise InvalidRequest(f"the name {key.name!r} stands in an entry before it")
        if known.digest == entry.digest:
            raise InvalidRequest(
                f"the token of {key.name!r} is that of {known.key.name!r}: every key needs its own"
            )
    return entry


def _format(entries: Iterable[_Entry]) -> str:
    items = [
        {
            "name": key.name,
            "token_sha256": digest.hex(),
            **{k: v for k, v in asdict(key).items() if v is not None},
        }
        for digest, key in entries
    ]
    return json.dumps({"keys": items}, indent=2) + "\n"
