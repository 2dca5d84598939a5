"""Prefixes that are kept in files, so that another start of the same target need not compute them.

A file holds one prefix: its tokens, then their keys in parts, each behind its digest. The name is a
digest of the target, of the group that may share the prefix, and of the tokens. A part's digest
covers that name. So a part is believed or not by itself, and no more is read than is used.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference.backends import RowStates
from inference.files import replacing
from inference.tree import IntArray

LEAST = 64
"""Tokens from which a prefix is kept, and from which a kept one is read instead of computed."""

PART = 256
"""Tokens whose keys are written or read at once, between two forwards."""

_FORM, _ENDING, _COUNT, _DIGEST = "1", ".keys", 8, 32  # bytes of the count and of a digest


class KeptPrefix(NamedTuple):
    """A file with a prefix, of whose tokens [n] a text has the first `usable` ones."""

    path: Path
    tokens: IntArray
    usable: int


class PrefixFiles:
    """The kept prefixes of one target. On the thread of the forwards alone.

    directory: where they are, beside those of other targets
    most: bytes that all files there may have together; the longest unused go first
    model: tells the target from every one that computes other keys
    states: of the target's slots
    tell: hears of files that are spoilt, a line each
    """

    def __init__(
        self,
        directory: Path,
        most: int,
        model: Sequence[str],
        states: RowStates,
        tell: Callable[[str], None],
    ) -> None:
        self._directory, self._most, self.states, self._tell = directory, most, states, tell
        self._model = [_FORM, *model, str(states.width)]
        self._groups: dict[str, dict[Path, IntArray]] = {}  # read when they are first asked for

    def find(self, tokens: IntArray, sharing: str, known: int) -> KeptPrefix | None:
        """Find the prefix of the group that has most of these tokens, and count it as used now.

        known: how many first tokens are cached already; a prefix is worth LEAST more.
        """
        shared = {path: common_prefix(held, tokens) for path, held in self._of(sharing).items()}
        path = max(shared, key=lambda path: shared[path], default=None)
        if path is None or shared[path] < known + LEAST:
            return None
        with suppress(OSError):
            os.utime(path)
        return KeptPrefix(path, self._of(sharing)[path], shared[path])

    def read(self, kept: KeptPrefix, start: int) -> NDArray[np.uint8]:
        """Return what was kept of the tokens from `start` on, to the end of a part: [n, width].

        It is empty where the file is gone or is not what was written. Then the file is removed.
        """
        part, width = start // PART, self.states.width
        first, last = part * PART, min((part + 1) * PART, len(kept.tokens))
        with suppress(OSError), kept.path.open("rb") as file:
            file.seek(self._size(first) + 4 * (len(kept.tokens) - first))
            digest, held = file.read(_DIGEST), bytearray(file.read((last - first) * width))
            if digest == _digest_of(kept.path, part, held):
                states = np.frombuffer(held, dtype=np.uint8).reshape(-1, width)
                return states[start - first : kept.usable - first]
        self._refuse(kept.path)
        return np.empty((0, width), dtype=np.uint8)

    def lacks(self, tokens: Sequence[int], sharing: str) -> bool:
        """Whether a prefix is to be kept: it is long enough, fits, and no file has all of it."""
        if len(tokens) < LEAST or self._size(len(tokens)) > self._most:
            return False
        wanted, held = np.asarray(tokens, dtype=np.int32), self._of(sharing).values()
        return all(common_prefix(one, wanted) < len(wanted) for one in held)

    def write(
        self, tokens: Sequence[int], sharing: str, row: int, slots: IntArray
    ) -> Iterator[None]:
        """Keep a prefix whose keys are in slots [n] of a row: a part at each step. A caller that
        leaves before the end has kept nothing.

        Files whose prefixes it goes on with are removed. After an OSError nothing more is kept.
        """
        known, group = np.asarray(tokens, dtype=np.int32), self._of(sharing)
        path = self._path(known, sharing)
        try:
            self._make_room(self._size(len(known)))
            with replacing(path) as new:
                new.chmod(0o600)
                with new.open("wb") as file:
                    file.write(len(known).to_bytes(_COUNT, "little") + known.tobytes())
                    for part in range(-(-len(known) // PART)):
                        own = slots[part * PART : (part + 1) * PART]
                        held = self.states.read(row, own).tobytes()
                        file.write(_digest_of(path, part, held) + held)
                        yield
        except OSError as error:
            self._most = 0
            self._tell(f"prefixes are not kept any more: {error}")
            return
        for other, held_tokens in list(group.items()):
            if common_prefix(held_tokens, known) == len(held_tokens):
                self._remove(other)
        group[path] = known

    def _of(self, sharing: str) -> dict[Path, IntArray]:
        """The tokens of a group's files, by path."""
        name = self._group(sharing)
        if name not in self._groups:
            self._groups[name] = {}
            for path in sorted(self._directory.glob(f"{name}-*{_ENDING}")):
                tokens = self._read_tokens(path)
                if path == self._path(tokens, sharing):
                    self._groups[name][path] = tokens
                else:
                    self._refuse(path)
        return self._groups[name]

    def _read_tokens(self, path: Path) -> IntArray:
        """Return a file's tokens; none unless it has the size that their number asks for."""
        with suppress(OSError), path.open("rb") as file:
            count = int.from_bytes(file.read(_COUNT), "little")
            if os.fstat(file.fileno()).st_size == self._size(count):
                return np.frombuffer(file.read(4 * count), dtype=np.int32)
        return np.empty(0, dtype=np.int32)

    def _make_room(self, size: int) -> None:
        """Remove the longest unused files, of whatever target, until so many bytes fit."""
        found = []
        for path in self._directory.glob(f"*{_ENDING}*"):  # and what a killed process left
            with suppress(FileNotFoundError):
                status = path.stat()
                found.append((status.st_mtime, status.st_size, path))
        total = size + sum(bytes_ for _, bytes_, _ in found)
        for _, bytes_, path in sorted(found):
            if total > self._most:
                self._remove(path)
                total -= bytes_

    def _refuse(self, path: Path) -> None:
        self._tell(f"a kept prefix is gone or spoilt, and is computed anew: {path}")
        self._remove(path)

    def _remove(self, path: Path) -> None:
        for group in self._groups.values():
            group.pop(path, None)
        with suppress(OSError):
            path.unlink()

    def _size(self, count: int) -> int:
        """Bytes of a file with so many tokens."""
        return _COUNT + -(-count // PART) * _DIGEST + count * (4 + self.states.width)

    def _group(self, sharing: str) -> str:
        return hashlib.sha256(json.dumps([*self._model, sharing]).encode()).hexdigest()[:32]

    def _path(self, tokens: IntArray, sharing: str) -> Path:
        group = self._group(sharing)
        digest = hashlib.sha256(group.encode() + tokens.tobytes()).hexdigest()[:48]
        return self._directory / f"{group}-{digest}{_ENDING}"


def _digest_of(path: Path, part: int, held: bytes | bytearray) -> bytes:
    """The digest of a part's keys in the file of this name."""
    digest = hashlib.sha256(f"{path.name} {part} ".encode())
    digest.update(held)
    return digest.digest()


def common_prefix(held: Sequence[int] | IntArray, wanted: NDArray[np.integer]) -> int:
    """Length of the common prefix of two token sequences. wanted: [n]"""
    n = min(len(held), len(wanted))
    if not n or held[0] != wanted[0]:
        return 0
    differing = np.flatnonzero(np.asarray(held[:n]) != wanted[:n])
    return int(differing[0]) if differing.size else n
