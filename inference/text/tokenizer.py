"""Converts between text and token ids; chats are formatted by the model's chat template."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import uuid4

import tokenizers
from jinja2 import TemplateError

from inference.errors import InvalidRequest, Mismatch, OutriderError, UnsupportedModel, require
from inference.files.json_file import read_json
from inference.files.writing import cache_directory, write_whole
from inference.text.chat_template import TemplateProcess, render
from inference.text.stream import TextStream, TokenBytes
from inference.text.tokenizer_settings import (
    DEFAULT,
    TOOL_USE,
    TokenizerIdentity,
    TokenizerSettings,
    core_hashes,
    fingerprint,
    has_regex,
    named_templates,
    read_templates,
)

_NAMED = tuple(f"{kind}_token" for kind in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
"""Names of special tokens in tokenizer_config.json and in chat templates."""


class _Stored(NamedTuple):
    rules: tokenizers.Tokenizer
    special: Mapping[str, str]  # special tokens by name
    templates: Mapping[str, str]  # chat templates by name


class Tokenizer:
    """The tokenizer of a Hugging Face directory, or of a GGUF file. Raises UnsupportedModel if it
    cannot be used, and MissingExtra for a GGUF file without transformers.

    vocabulary: the highest token id plus one
    """

    def __init__(self, directory: Path) -> None:
        load = _of_gguf if directory.is_file() else _of_directory
        try:
            self._take(load(directory))
        except OutriderError:
            raise
        except Exception as error:  # the libraries' parsers raise bare Exception
            why = next(iter(str(error).splitlines()), type(error).__name__)
            raise UnsupportedModel(f"{directory}: its tokenizer cannot be read ({why})") from error
        if not self.vocabulary:
            raise UnsupportedModel(f"{directory}: its tokenizer.json has no tokens")

    def _take(self, stored: _Stored) -> None:
        self._rules, self._named, self._templates = stored
        self.vocabulary = max(self.ids().values(), default=-1) + 1
        self._bytes = TokenBytes(self._rules)
        self._foreign = frozenset[str]()  # chat templates received from a target

    @property
    def settings(self) -> TokenizerSettings:
        """Everything except the vocabulary that affects encoding and decoding."""
        return self._summary[1]

    def fingerprint(self) -> str:
        """A hash of all that determines the ids of a text: token ids, special tokens, merges,
        normaliser and pre-tokeniser. It ignores the files' exact bytes, vocabulary padding and the
        decoder, which differ between models of a family.
        """
        return self._summary[0]

    @property
    def identity(self) -> TokenizerIdentity:
        """Fingerprint and settings, which show whether two tokenizers produce the same ids."""
        return TokenizerIdentity(*self._summary)

    @cached_property
    def _summary(self) -> tuple[str, TokenizerSettings]:
        backend = json.loads(self.to_json())  # megabytes, so parsed once for both
        settings = TokenizerSettings(
            self.vocabulary,
            core_hashes(backend),
            backend["added_tokens"],
            backend["post_processor"],
            backend["decoder"],
            self._named,
            self._templates,
        )
        return fingerprint(backend, self.ids()), settings

    def with_settings(self, settings: TokenizerSettings) -> Tokenizer:
        """Return a copy of this tokenizer with the settings of a target.

        Raises Mismatch if the ids of both differ, or the settings are invalid.
        """
        if reason := self.settings.disagreement(settings):
            raise Mismatch(reason)
        if settings.decoder != self.settings.decoder and has_regex(settings.decoder):
            raise Mismatch("the target's decoder has a regular expression, the local one has none")
        decoding = {name: getattr(settings, name) for name in ("post_processor", "decoder")}
        backend = json.loads(self.to_json()) | decoding | {"added_tokens": settings.added}
        clone = copy(self)
        del clone.__dict__["_summary"]
        try:
            rules = tokenizers.Tokenizer.from_str(json.dumps(backend))
        except Exception as error:  # the library raises bare Exception
            raise Mismatch(f"the target's tokenizer settings are invalid: {error}") from error
        clone._take(_Stored(rules, settings.named, settings.templates))
        clone.vocabulary = settings.vocabulary
        clone._foreign = frozenset(settings.templates.values()) - {*self._templates.values()}
        wrong = next((key for key, name in settings.ids.items() if clone.id_of(name) != key), None)
        if wrong is not None:
            raise Mismatch(f"id {wrong} of the target's tokenizer cannot be added to the local one")
        return clone

    @property
    def template(self) -> str:
        """The chat template for chats with tools; empty if the model has none."""
        return self._template(tools=True)

    def _template(self, *, tools: bool) -> str:
        """Return the chat template that the transformers library would use; empty for none."""
        default = self._templates.get(DEFAULT, "")
        return self._templates.get(TOOL_USE, default) if tools else default

    @cached_property
    def _apart(self) -> TemplateProcess:
        return TemplateProcess()

    @property
    def end_ids(self) -> frozenset[int]:
        """The end-of-text token in the tokenizer's files, if any."""
        token = self.id_of(self._named.get("eos_token", ""))
        return frozenset() if token is None else frozenset({token})

    def special_tokens(self, texts: Iterable[str]) -> dict[int, str]:
        """Return which of the texts are special tokens, by id. Decoded text omits these tokens."""
        added, contents = self._rules.get_added_tokens_decoder(), set(texts)
        return {
            token: entry.content
            for token, entry in added.items()
            if entry.special and entry.content in contents
        }

    def to_json(self) -> str:
        """Return the tokenizer in the format of tokenizer.json."""
        return str(self._rules.to_str())

    def ids(self) -> dict[str, int]:
        """Return a mapping from every token to its id."""
        return dict(self._rules.get_vocab())

    def id_of(self, token: str) -> int | None:
        """Return the id of a token; None if the vocabulary lacks it."""
        token_id: int | None = self._rules.token_to_id(token)
        return token_id

    def encode(self, prompt: str, *, chat: bool = False) -> list[int]:
        """Return the token ids of a raw prompt, or of a chat's first turn.

        A raw prompt gets a beginning-of-text token if the tokenizer has one. Raises InvalidRequest
        for an empty prompt, and for a chat without a chat template.
        """
        if not prompt:
            raise InvalidRequest("the prompt is empty")
        if chat:
            return self.encode_chat([{"role": "user", "content": prompt}])
        return self._ids(prompt)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] = MappingProxyType({}),
        *,
        continues: bool = False,
    ) -> list[int]:
        """Return the token ids of a chat, up to the beginning of the assistant's next message.

        messages: mappings with `role`, `content`, and other fields that the template uses
        tools: functions that the model may call, in the format of OpenAI's API
        variables: other variables of the template, such as enable_thinking
        continues: whether the model continues the last message instead of starting a new one

        Raises InvalidRequest without a chat template, and if the template fails.
        """
        if not messages:
            raise InvalidRequest("a chat needs at least one message")
        template = self._template(tools=bool(tools))
        if not template:
            names = ", ".join(self._templates)
            lacks = f"no default one, but {names}" if names else "none"
            raise InvalidRequest(f"a chat needs a model with a chat template: this one has {lacks}")
        chat, end = [dict(message) for message in messages], ""
        if continues:
            end = uuid4().hex
            chat[-1]["content"] = f"{chat[-1].get('content') or ''}{end}"
        context = {
            "add_generation_prompt": not continues,
            "documents": None,
            **variables,
            **self._named,
            "messages": chat,
            "tools": list(tools) or None,
        }
        try:
            text = (self._apart.render if template in self._foreign else render)(template, context)
        except TemplateError as error:
            raise InvalidRequest(str(error)) from error
        if end not in text:
            raise InvalidRequest("the model's chat template changes the message to be continued")
        return self._ids(text[: text.rindex(end)] if end else text, special=False)

    def _ids(self, text: str, *, special: bool = True) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"the prompt is not valid {_flaw(error)}") from error
        return list(self._rules.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens."""
        return str(self._rules.decode(list(ids), skip_special_tokens=True))

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token, also of a special one. They may be part of a character."""
        return self._bytes.of(token)

    def stream(self, prompt: Sequence[int]) -> TextStream:
        """Return a stream that converts the ids after `prompt` to text piece by piece."""
        return TextStream(self._bytes, prompt)


def _of_directory(directory: Path) -> _Stored:
    if not (directory / "tokenizer.json").is_file():
        raise UnsupportedModel(
            f"{directory}: it has no tokenizer.json, which is needed; transformers creates it: "
            "AutoTokenizer.from_pretrained(DIRECTORY).save_pretrained(DIRECTORY)"
        )
    rules = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    rules.no_truncation()
    rules.no_padding()
    path = directory / "tokenizer_config.json"
    settings = read_json(path, UnsupportedModel).dictionary() if path.is_file() else {}
    added = sorted(settings.get("added_tokens_decoder", {}).items(), key=lambda item: int(item[0]))
    rules.add_tokens([tokenizers.AddedToken(**token) for _, token in added])
    names = {name: _content(settings[name]) for name in _NAMED if settings.get(name)}
    special = [
        tokenizers.AddedToken(text, special=True, normalized=False) for text in names.values()
    ]
    rules.add_special_tokens(special)
    return _Stored(rules, names, read_templates(directory, settings))


def _content(token: str | Mapping[str, Any]) -> str:
    """Return the text of a token, which files store as a string or with matching options."""
    return token if isinstance(token, str) else str(token["content"])


def _of_gguf(path: Path) -> _Stored:
    """Return the tokenizer in a GGUF file, cached on disk since creating it takes many seconds."""
    state = path.stat()
    facts = f"{path.resolve()} {state.st_size} {state.st_mtime_ns} {tokenizers.__version__}"
    cache = cache_directory("tokenizers") / f"{hashlib.sha256(facts.encode()).hexdigest()}.json"
    if cache.is_file():
        rules, special, templates = read_json(cache, UnsupportedModel).value
        return _Stored(tokenizers.Tokenizer.from_str(rules), special, named_templates(templates))
    stored = _made_of_gguf(path)
    with suppress(OSError):  # without a cache it is created again
        write_whole(cache, json.dumps([stored.rules.to_str(), stored.special, stored.templates]))
    return stored


def _made_of_gguf(path: Path) -> _Stored:
    require("torch", f"{path} without its checkpoint's tokenizer.json beside it", "transformers")
    from transformers import AutoTokenizer

    loaded: Any = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    templates = named_templates(loaded.chat_template)
    return _Stored(loaded.backend_tokenizer, dict(loaded.special_tokens_map), templates)


def _flaw(error: UnicodeEncodeError) -> str:
    """Return why a text cannot be encoded: the command line has a byte that is not UTF-8, or the
    text has half of a surrogate pair.
    """
    half = ord(error.object[error.start])
    if 0xDC80 <= half <= 0xDCFF:  # Python decodes invalid bytes in arguments to these
        byte = f"byte 0x{half - 0xDC00:02x} at position {error.start}"
        return f"UTF-8: {byte}; convert it, as with iconv -t utf-8"
    return f"Unicode: half of a surrogate pair (U+{half:04X}) at position {error.start}"
