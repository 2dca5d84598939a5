"""Keys of callers and their limits: bearer tokens, of which only SHA-256 digests are known.

A changed keys file (keys_file.py) applies from the next call on, and to open streams within a
second. A file that cannot be used, or is gone, is logged, and the earlier keys stay.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Iterable
from pathlib import Path

from grpc_comm.keys_file import Key, KeyEntry, KeysFile, digest_of
from inference.errors import InvalidRequest

__all__ = ["SINGLE_TENANT", "WATCH_SECONDS", "Grant", "Key", "Keys"]

log = logging.getLogger(__name__)

SINGLE_TENANT = "default"
"""The tenant of everyone who has the token of a --token_file."""

WATCH_SECONDS = 0.4
"""Seconds between checks of the keys file, and of a stream's key. Both together are below a
second.
"""

_SCHEME = b"Bearer "

Metadata = Iterable[tuple[str, str | bytes]]


class Keys:
    """The keys that a target knows. Not thread-safe: used on the server's loop only."""

    def __init__(self, entries: tuple[KeyEntry, ...] | None, file: KeysFile | None = None) -> None:
        # None: nobody is asked for a token. An empty tuple: nobody is let in.
        self._entries, self._file = entries, file
        self.edition = 0  # grows with every version of the file that is used

    @classmethod
    def open(cls) -> Keys:
        """Keys that ask nobody for a token: everyone is the tenant "", without limits of its
        own.
        """
        return cls(None)

    @classmethod
    def single(cls, token: str) -> Keys:
        """Keys with one token for all; raises InvalidRequest for an empty one."""
        if not token:
            raise InvalidRequest("a token is needed: got an empty one")
        return cls((KeyEntry(digest_of(token), Key(SINGLE_TENANT)),))

    @classmethod
    def read(cls, path: Path) -> Keys:
        """Read the keys of a file, which is watched from here on.

        Raises InvalidRequest, naming file, entry and what is needed.
        """
        file = KeysFile(path)
        return cls(file.read(), file)

    @property
    def required(self) -> bool:
        """Whether callers are asked for a token."""
        return self._entries is not None

    def grant(self, metadata: Metadata | None) -> Grant | None:
        """Return what a call with this metadata may do while it lasts; None: refuse it."""
        self.reload()
        digest = _digest(metadata)
        key = self.of(digest)
        return None if key is None else Grant(self, digest, key)

    def of(self, digest: bytes | None) -> Key | None:
        """Return the key with this token digest; None where there is none, or no token was given.

        Every digest is compared, each in constant time, so the time taken reveals nothing about a
        token.
        """
        if self._entries is None:
            return _EVERYONE
        if digest is None:
            return None
        found = None
        for entry in self._entries:
            if hmac.compare_digest(entry.digest, digest):
                found = entry.key
        return found

    async def watch(self) -> None:
        """Follow the file for ever, also while nobody calls."""
        while self._file is not None:
            self.reload()
            await asyncio.sleep(WATCH_SECONDS)

    def reload(self) -> None:
        """Take the file's new content, if it has changed and can be used."""
        if self._file is None or not self._file.changed():
            return
        unread = self._file.unread
        try:
            self._entries = self._file.read()
        except InvalidRequest as error:
            if not (unread and self._file.unread):  # else it was told
                self._log_failure(error)
        else:
            self.edition += 1
            log.info("%d keys are read from %s", len(self._entries), self._file.path)

    def _log_failure(self, error: InvalidRequest) -> None:
        assert self._file is not None
        if self._file.exists:
            log.error("the keys stay as they were: %s", error)
        else:
            count = len(self._entries or ())
            gone = f"the keys file {self._file.path} is gone; its {count} keys stay"
            log.error('%s: put it back, or write {"keys": []} there to refuse everybody', gone)


_EVERYONE = Key("")


class Grant:
    """Rights of one call by the present keys."""

    def __init__(self, keys: Keys, digest: bytes | None, key: Key) -> None:
        self._keys, self._digest, self._key = keys, digest, key
        self._edition, self._withdrawn = keys.edition, False

    @property
    def key(self) -> Key:
        """The key with its present limits; with its last limits once it is withdrawn."""
        self._refresh()
        return self._key

    @property
    def withdrawn(self) -> bool:
        """Whether the token is no longer this tenant's, so that the call has to end."""
        self._refresh()
        return self._withdrawn

    def _refresh(self) -> None:
        if self._withdrawn or self._edition == self._keys.edition:
            return
        self._edition = self._keys.edition
        key = self._keys.of(self._digest)
        if key is None or key.name != self._key.name:
            self._withdrawn = True
        else:
            self._key = key


def _digest(metadata: Metadata | None) -> bytes | None:
    """Return the SHA-256 digest of the token that a call carries; None where it carries none.

    An empty token counts as none, and so do tokens in several headers.
    """
    headers = [value for name, value in metadata or () if name == "authorization"]
    given = [value.encode() if isinstance(value, str) else value for value in headers]
    if len(given) != 1 or not given[0].startswith(_SCHEME):
        return None
    token = given[0][len(_SCHEME) :]
    return digest_of(token) if token else None
