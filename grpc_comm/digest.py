"""A short name for a sequence of tokens, so that both ends know that they speak of the same one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np


class PrefixDigest:
    """BLAKE2b of 8 bytes over 32-bit little-endian ids, kept up to date as the sequence grows."""

    def __init__(self) -> None:
        self._hash, self._length = hashlib.blake2b(digest_size=8), 0

    def of(self, tokens: Sequence[int]) -> int:
        """The digest of these tokens, which begin with those of the call before unless they are fewer."""
        if len(tokens) < self._length:
            self._hash, self._length = hashlib.blake2b(digest_size=8), 0
        self._hash.update(np.array(tokens[self._length :], dtype="<u4").tobytes())
        self._length = len(tokens)
        return int.from_bytes(self._hash.digest(), "little")
