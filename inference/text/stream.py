"""Converts a stream of token ids to text. A character may be spread over several tokens, so their
bytes are joined first.
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import tokenizers

_CHARACTER_BYTES = 4
"""Maximum bytes of a character in UTF-8, and so maximum tokens that a character spans."""

_PRINTED = (*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_HIDDEN = [byte for byte in range(256) if byte not in _PRINTED]
_BYTES = {chr(byte): byte for byte in _PRINTED} | {
    chr(256 + place): byte for place, byte in enumerate(_HIDDEN)
}
"""Letter -> the byte that it represents in byte-level vocabularies."""

_BYTE = re.compile("<0x([0-9A-F]{2})>")
"""A token for a single byte in vocabularies with byte fallback."""


class TokenBytes:
    """Computes the bytes of tokens with the tokenizer's decoder."""

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
        """Return the bytes of a token in the middle of a text; for an added token, its content."""
        if token in self._added:
            return self._added[token][0].encode()
        return self.after(self._ordinary, token) or b""

    def after(self, before: int | None, token: int) -> bytes | None:
        """Return the bytes that a token adds to a text; None for a special token, which adds none.

        before: the previous token that is not special; None at the beginning
        """
        piece = self._rules.id_to_token(token)
        if piece is None or (token in self._added and self._added[token][1]):
            return None
        if self._byte_level:
            printable = all(letter in _BYTES for letter in piece)
            return bytes(_BYTES[letter] for letter in piece) if printable else piece.encode()
        byte = self._byte(token)
        if byte is not None and (before is not None or byte[0] >= 0x80):
            return byte
        context = [] if before is None else self._context(before)
        return self._decode([*context, token])[len(self._decode(context)) :].encode()

    def _context(self, before: int) -> list[int]:
        """Return tokens to decode together with the next token. An ordinary token comes first,
        since decoders may strip the beginning. A single byte is left out: the next could join it.
        """
        start = [] if self._ordinary is None else [self._ordinary]
        return start if self._byte(before) is not None else [*start, before]

    @cached_property
    def _ordinary(self) -> int | None:
        """Return the first token that is a word or a letter, if any."""
        for token in range(self._rules.get_vocab_size()):
            if (
                self._byte(token) is None
                and "".join(self._decode([token, token]).split()).isalpha()
            ):
                return token
        return None

    def _byte(self, token: int) -> bytes | None:
        match = self._byte_fallback and _BYTE.fullmatch(self._rules.id_to_token(token) or "")
        return bytes([int(match[1], 16)]) if match else None

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._rules.decode(ids, skip_special_tokens=True))


class Spelling(Protocol):
    """Gives the bytes of tokens; see TokenBytes.after()."""

    def after(self, before: int | None, token: int) -> bytes | None: ...


class TextStream:
    """Converts the tokens after a prompt to text, in whole characters.

    Invalid bytes become U+FFFD. A character that begins in the prompt and is completed after it is
    part of the text.
    """

    def __init__(self, spelling: Spelling, prompt: Sequence[int]) -> None:
        self._spelling = spelling
        self._letters = getincrementaldecoder("utf-8")("replace")
        self._before: int | None = None
        self._begun = ""  # the incomplete character at the prompt's end, as decoded alone
        shown = (token for token in reversed(prompt) if spelling.after(token, token) is not None)
        tail = [token for token, _ in zip(shown, range(_CHARACTER_BYTES), strict=False)]
        for token in reversed(tail):
            self.push(token)
        self._begun = self._incomplete.decode(errors="replace")

    @property
    def is_whole(self) -> bool:
        """Whether the text so far ends with a complete character."""
        return not self._incomplete

    @property
    def _incomplete(self) -> bytes:
        return self._letters.getstate()[0]

    def push(self, token: int) -> str:
        """Add a token. Return the text that it completes; empty within a character."""
        added = self._spelling.after(self._before, token)
        if added is None:
            return ""
        self._before = token
        return self._own(self._letters.decode(added))

    def finish(self) -> str:
        """Return the rest of the text, after the last token."""
        return self._own(self._letters.decode(b"", final=True))

    def _own(self, text: str) -> str:
        """Return the text without the part that belongs to the prompt."""
        begun, self._begun = self._begun, "" if text else self._begun
        return text.removeprefix(begun) if text else ""
