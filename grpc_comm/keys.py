"""Keys of callers and their limits: bearer tokens, stored as SHA-256 digests only.

A changed keys file (keys_file.py) applies from the next call on, and to open streams within a
second. If the new file is missing or invalid, this is logged, and the earlier keys stay valid.
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
"""The tenant of all clients that use the token of a --token_file."""

WATCH_SECONDS = 0.4
"""Seconds between checks of the keys file, and between checks of a stream's key. The sum of both is
below a second.
"""

_SCHEME = b"Bearer "

Metadata = Iterable[tuple[str, str | bytes]]


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
        return cls((KeyEntry(digest_of(token), Key(SINGLE_TENANT)),))

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
    """Return the SHA-256 digest of a call's token; None for a call without a token.

    An empty token, or several headers with tokens, count as no token.
    """
    headers = [value for name, value in metadata or () if name == "authorization"]
    values = [value.encode() if isinstance(value, str) else value for value in headers]
    if len(values) != 1 or not values[0].startswith(_SCHEME):
        return None
    token = values[0][len(_SCHEME) :]
    return digest_of(token) if token else None
