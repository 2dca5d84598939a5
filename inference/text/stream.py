"""Converts a stream of token ids to text, by the bytes of each token.

A character may have its bytes in several tokens, and a decoder's output for a token depends on the
tokens before it. So text is never cut out of decoded windows: bytes are joined, and characters are
decoded from them.
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import tokenizers

_CHARACTER_BYTES = 4
"""Maximum bytes of a character in UTF-8, and so of tokens with an incomplete one."""

_PRINTED = (*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_HIDDEN = [byte for byte in range(256) if byte not in _PRINTED]
_BYTES = {chr(byte): byte for byte in _PRINTED} | {
    chr(256 + place): byte for place, byte in enumerate(_HIDDEN)
}
"""Bytes by their letters in byte-level vocabularies."""

_BYTE = re.compile("<0x([0-9A-F]{2})>")
"""A byte in vocabularies with byte fallback."""


class TokenBytes:
    """The bytes of a tokenizer's tokens, by its decoder."""

    def __init__(self, rules: tokenizers.Tokenizer) -> None:
        self._rules = rules
        self._added = {
            token: (added.content, added.special)
            for token, added in rules.get_added_tokens_decoder().items()
        }
        state = b"" if rules.decoder is None else rules.decoder.__getstate__()
        steps = {kind.decode() for kind in re.findall(rb'"type":"(\w+)"', state)}
        self._byte_level, self._byte_fallback = "ByteLevel" in steps, "ByteFallback" in steps

    def of(self, token: int) -> bytes:
        """The bytes of a token in the middle of a text; of an added one, its content."""
        if token in self._added:
            return self._added[token][0].encode()
        return self.after(self._ordinary, token) or b""

    def after(self, before: int | None, token: int) -> bytes | None:
        """The bytes that a token adds to a text; None if no text shows it.

        before: the last token that the text shows; None at its beginning
        """
        piece = self._rules.id_to_token(token)
        if piece is None or (token in self._added and self._added[token][1]):
            return None
        if self._byte_level:
            known = all(letter in _BYTES for letter in piece)
            return bytes(_BYTES[letter] for letter in piece) if known else piece.encode()
        byte = self._byte(token)
        if byte is not None and (before is not None or byte[0] >= 0x80):
            return byte
        context = [] if before is None else self._context(before)
        return self._decode([*context, token])[len(self._decode(context)) :].encode()

    def _context(self, before: int) -> list[int]:
        """Tokens to decode before another one. A decoder may strip the beginning of a text, so an
        ordinary token comes first. A byte would be joined to others, so it is omitted.
        """
        known = [] if self._ordinary is None else [self._ordinary]
        return known if self._byte(before) is not None else [*known, before]

    @cached_property
    def _ordinary(self) -> int | None:
        """The first token that is a word or a letter; None if there is none."""
        for token in range(self._rules.get_vocab_size()):
            if (
                self._byte(token) is None
                and "".join(self._decode([token, token]).split()).isalpha()
            ):
                return token
        return None

    def _byte(self, token: int) -> bytes | None:
        found = self._byte_fallback and _BYTE.fullmatch(self._rules.id_to_token(token) or "")
        return bytes([int(found[1], 16)]) if found else None

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._rules.decode(ids, skip_special_tokens=True))


class Spelling(Protocol):
    """A tokenizer's spelling: after() returns the bytes that a token adds to a text, or None for a
    token that no text shows. `before` is the last token that the text shows.
    """

    def after(self, before: int | None, token: int) -> bytes | None: ...


class TextStream:
    """The text of tokens after a prompt, in whole characters.

    Bytes that are no character become U+FFFD. A character that the prompt has begun is part of the
    text if the text completes it.
    """

    def __init__(self, spelling: Spelling, prompt: Sequence[int]) -> None:
        self._spelling = spelling
        self._letters = getincrementaldecoder("utf-8")("replace")
        self._before: int | None = None
        self._begun = ""  # what the prompt shows of a character that it leaves incomplete
        shown = (token for token in reversed(prompt) if spelling.after(token, token) is not None)
        tail = [token for token, _ in zip(shown, range(_CHARACTER_BYTES), strict=False)]
        for token in reversed(tail):
            self.push(token)
        self._begun = self._incomplete.decode(errors="replace")

    @property
    def is_whole(self) -> bool:
        """Whether the text so far ends with a whole character."""
        return not self._incomplete

    @property
    def _incomplete(self) -> bytes:
        return self._letters.getstate()[0]

    def push(self, token: int) -> str:
        """The text that this token completes; empty while a character is incomplete."""
        added = self._spelling.after(self._before, token)
        if added is None:
            return ""
        self._before = token
        return self._own(self._letters.decode(added))

    def finish(self) -> str:
        """The rest of the text, after the last token."""
        return self._own(self._letters.decode(b"", final=True))

    def _own(self, text: str) -> str:
        """The text without what the prompt shows already."""
        begun, self._begun = self._begun, "" if text else self._begun
        return text.removeprefix(begun) if text else ""
