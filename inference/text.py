"""Conversion between text and token ids: tokenizer, chat template, incremental detokenizing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from inference.errors import InvalidRequest, UnsupportedModel

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Tokenizer:
    """The tokenizer of a Hugging Face directory, or of a GGUF file. Raises UnsupportedModel if it
    cannot be used.

    vocabulary: one past the greatest token id.
    """

    def __init__(self, directory: Path) -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = (
                AutoTokenizer.from_pretrained(str(directory.parent), gguf_file=directory.name)
                if directory.is_file()
                else AutoTokenizer.from_pretrained(str(directory))
            )
            vocabulary = self._tokenizer.get_vocab()
        except Exception as error:  # the library's parser raises bare Exception
            said = next(iter(str(error).splitlines()), type(error).__name__)
            raise UnsupportedModel(f"{directory}: its tokenizer cannot be read ({said})") from error
        if not self._tokenizer.is_fast:
            raise UnsupportedModel(f"{directory}: it has no tokenizer.json, which is needed")
        if not vocabulary:
            raise UnsupportedModel(f"{directory}: its tokenizer.json has no tokens")
        self.vocabulary = max(vocabulary.values()) + 1

    def ids(self) -> dict[str, int]:
        """Every token's id."""
        return dict(self._tokenizer.get_vocab())

    def encode(self, prompt: str, *, chat: bool = False) -> list[int]:
        """Token ids of a raw prompt, or of a chat's first turn.

        A raw prompt gets the beginning-of-text token where the tokenizer defines one. Raises
        InvalidRequest for an empty prompt, or for a chat without a chat template.
        """
        if not prompt:
            raise InvalidRequest("the prompt is empty")
        if chat:
            return self.encode_chat([{"role": "user", "content": prompt}])
        return self._ids(prompt)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a chat, up to where the assistant's next message begins.

        messages: each with its `role` and its `content`. Raises InvalidRequest without a chat
        template, and for messages that the template refuses.
        """
        if not messages:
            raise InvalidRequest("a chat needs at least one message")
        if not self._tokenizer.chat_template:
            raise InvalidRequest("a chat needs a model with a chat template: this one has none")
        try:
            text = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages], add_generation_prompt=True, tokenize=False
            )
        except TemplateError as error:
            raise InvalidRequest(f"the model's chat template refuses: {error}") from error
        return self._ids(text, add_special_tokens=False)

    def _ids(self, text: str, **how: bool) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"the prompt is no Unicode text: half of a pair stands at {error.start}"
            ) from error
        return [int(token) for token in self._tokenizer.encode(text, verbose=False, **how)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, without special tokens."""
        return str(
            self._tokenizer.decode(
                list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )

    def stream(self, prompt: Sequence[int]) -> TextStream:
        """A stream that turns the ids after `prompt` into text piece by piece."""
        return TextStream(self, prompt)

    def fingerprint(self) -> str:
        """A hash of everything that turns text into ids.

        It covers token ids, special tokens, merges, normaliser and pre-tokeniser. It leaves out
        file bytes, vocabulary padding and the decoder, which differ between sizes of one family.
        """
        backend = json.loads(self._tokenizer.backend_tokenizer.to_str())
        model = {
            key: value
            for key, value in backend["model"].items()
            if key not in ("vocab", "merges", "dropout")
        }
        merges = [
            " ".join(merge) if isinstance(merge, list) else merge
            for merge in backend["model"].get("merges") or []
        ]
        parts = {
            "ids": sorted(self._tokenizer.get_vocab().items()),
            "special": sorted(
                (token["id"], token["content"])
                for token in backend["added_tokens"]
                if token["special"]
            ),
            "merges": merges,
            "model": _without_defaults(model),
            "normalizer": _without_defaults(backend["normalizer"]),
            "pre_tokenizer": _without_defaults(backend["pre_tokenizer"]),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _without_defaults(value: Any) -> Any:
    """The value without nulls and falses, which some library versions write and others omit."""
    if isinstance(value, dict):
        return {
            key: _without_defaults(part) for key, part in value.items() if part not in (None, False)
        }
    return [_without_defaults(part) for part in value] if isinstance(value, list) else value


class TextStream:
    """Incremental detokenizing: whole characters only, and the pieces add up to the full text.

    It decodes a short window of ids. A token's text may depend on its neighbours, for leading
    spaces and for characters of several bytes.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = list(prompt[-8:])
        self._shown, self._start = len(self._ids), 0

    def push(self, token: int) -> str:
        """The text that this token completes; empty while a character is incomplete."""
        self._ids.append(token)
        before, after = self._window()
        if after.endswith(_REPLACEMENT) or len(after) <= len(before):
            return ""
        self._start, self._shown = self._shown, len(self._ids)
        return after[len(before) :]

    def finish(self) -> str:
        """The remaining text, after the last token."""
        before, after = self._window()
        self._shown = len(self._ids)
        return after[len(before) :]

    def _window(self) -> tuple[str, str]:
        decode = self._tokenizer.decode
        return decode(self._ids[self._start : self._shown]), decode(self._ids[self._start :])
