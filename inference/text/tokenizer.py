"""Conversion between text and token ids: tokenizer and chat template."""

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

from inference.errors import InvalidRequest, Mismatch, OutriderError, UnsupportedModel
from inference.extras import require
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
    has_regex,
    named_templates,
    read_templates,
    without_defaults,
)

_NAMED = tuple(f"{kind}_token" for kind in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
"""Special tokens that chat templates know by these names."""


class _Stored(NamedTuple):
    """A tokenizer as its files have it."""

    rules: tokenizers.Tokenizer
    named: Mapping[str, str]  # special tokens by their names in chat templates
    templates: Mapping[str, str]  # of chats, by name


class Tokenizer:
    """The tokenizer of a Hugging Face directory, or of a GGUF file. Raises UnsupportedModel if it
    cannot be used, and MissingExtra for a GGUF file without transformers.

    vocabulary: one past the greatest token id.
    """

    def __init__(self, directory: Path) -> None:
        read = _of_gguf if directory.is_file() else _of_directory
        try:
            self._take(read(directory))
        except OutriderError:
            raise
        except Exception as error:  # the libraries' parsers raise bare Exception
            said = next(iter(str(error).splitlines()), type(error).__name__)
            raise UnsupportedModel(f"{directory}: its tokenizer cannot be read ({said})") from error
        if not self.vocabulary:
            raise UnsupportedModel(f"{directory}: its tokenizer.json has no tokens")

    def _take(self, stored: _Stored) -> None:
        self._rules, self._named, self._templates = stored
        self.vocabulary = max(self.ids().values(), default=-1) + 1
        self._bytes = TokenBytes(self._rules)
        self._foreign = frozenset[str]()  # templates that a target sent

    @property
    def settings(self) -> TokenizerSettings:
        """All that determines prompts and texts beside the vocabulary."""
        return self._summary[1]

    def fingerprint(self) -> str:
        """A hash of everything that turns text into ids.

        It covers token ids, special tokens, merges, normaliser and pre-tokeniser. It leaves out
        file bytes, vocabulary padding and the decoder, which differ between sizes of one family.
        """
        return self._summary[0]

    @property
    def identity(self) -> TokenizerIdentity:
        """Identifies the ids that a tokenizer produces."""
        return TokenizerIdentity(*self._summary)

    @cached_property
    def _summary(self) -> tuple[str, TokenizerSettings]:
        backend = json.loads(self.to_json())  # megabytes, which are parsed once for both
        settings = TokenizerSettings(
            self.vocabulary,
            core_hashes(backend),
            backend["added_tokens"],
            backend["post_processor"],
            backend["decoder"],
            self._named,
            self._templates,
        )
        return _fingerprint(backend, self.ids()), settings

    def with_settings(self, settings: TokenizerSettings) -> Tokenizer:
        """The tokenizer with these settings of a target and the vocabulary here.

        Raises Mismatch where ids of the two differ, or the settings are invalid.
        """
        if reason := self.settings.disagreement(settings):
            raise Mismatch(reason)
        if settings.decoder != self.settings.decoder and has_regex(settings.decoder):
            raise Mismatch("the target's decoder has a regular expression, the local one has none")
        parts = {name: getattr(settings, name) for name in ("post_processor", "decoder")}
        backend = json.loads(self.to_json()) | parts | {"added_tokens": settings.added}
        made = copy(self)
        del made.__dict__["_summary"]
        try:
            rules = tokenizers.Tokenizer.from_str(json.dumps(backend))
        except Exception as error:  # the library raises bare Exception
            raise Mismatch(f"the target's tokenizer settings are invalid: {error}") from error
        made._take(_Stored(rules, settings.named, settings.templates))
        made.vocabulary = settings.vocabulary
        made._foreign = frozenset(settings.templates.values()) - {*self._templates.values()}
        wrong = next((one for one, name in settings.ids.items() if made.id_of(name) != one), None)
        if wrong is not None:
            raise Mismatch(f"id {wrong} of the target's tokenizer cannot be added to the local one")
        return made

    @property
    def template(self) -> str:
        """The template of chats with tools; empty for none."""
        return self._template(tools=True)

    def _template(self, *, tools: bool) -> str:
        """The template that the transformers library uses."""
        default = self._templates.get(DEFAULT, "")
        return self._templates.get(TOOL_USE, default) if tools else default

    @cached_property
    def _apart(self) -> TemplateProcess:
        return TemplateProcess()

    @property
    def end_ids(self) -> frozenset[int]:
        """The token that ends a text by the tokenizer's own files, if any."""
        token = self.id_of(self._named.get("eos_token", ""))
        return frozenset() if token is None else frozenset({token})

    def special_tokens(self, texts: Iterable[str]) -> dict[int, str]:
        """The special tokens among these texts, by id. Decoded text omits them."""
        added, wanted = self._rules.get_added_tokens_decoder(), set(texts)
        return {
            token: one.content
            for token, one in added.items()
            if one.special and one.content in wanted
        }

    def to_json(self) -> str:
        """The tokenizer as the content of a tokenizer.json."""
        return str(self._rules.to_str())

    def ids(self) -> dict[str, int]:
        """Every token's id."""
        return dict(self._rules.get_vocab())

    def id_of(self, token: str) -> int | None:
        """The id of a token; None where the vocabulary does not have it."""
        known: int | None = self._rules.token_to_id(token)
        return known

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

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] = MappingProxyType({}),
        *,
        continues: bool = False,
    ) -> list[int]:
        """Token ids of a chat, up to where the assistant's next message begins.

        messages: each with its `role` and its `content`, and other fields of the template
        tools: functions offered to the model, in the form of OpenAI's API
        variables: other variables of the template, such as enable_thinking
        continues: the chat ends within its last message, which is to be continued

        Raises InvalidRequest without a chat template, and where the template fails.
        """
        if not messages:
            raise InvalidRequest("a chat needs at least one message")
        template = self._template(tools=bool(tools))
        if not template:
            named = ", ".join(self._templates)
            lacks = f"no default one, but {named}" if named else "none"
            raise InvalidRequest(f"a chat needs a model with a chat template: this one has {lacks}")
        told, end = [dict(message) for message in messages], ""
        if continues:
            end = uuid4().hex
            told[-1]["content"] = f"{told[-1].get('content') or ''}{end}"
        known = {
            "add_generation_prompt": not continues,
            "documents": None,
            **variables,
            **self._named,
            "messages": told,
            "tools": list(tools) or None,
        }
        try:
            text = (self._apart.render if template in self._foreign else render)(template, known)
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
        """The text of token ids, without special tokens."""
        return str(self._rules.decode(list(ids), skip_special_tokens=True))

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token, special ones included. They may be a part of a character."""
        return self._bytes.of(token)

    def stream(self, prompt: Sequence[int]) -> TextStream:
        """A stream that turns the ids after `prompt` into text piece by piece."""
        return TextStream(self._bytes, prompt)


def _fingerprint(backend: Mapping[str, Any], ids: Mapping[str, int]) -> str:
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
        "ids": sorted(ids.items()),
        "special": sorted(
            (token["id"], token["content"]) for token in backend["added_tokens"] if token["special"]
        ),
        "merges": merges,
        "model": without_defaults(model),
        "normalizer": without_defaults(backend["normalizer"]),
        "pre_tokenizer": without_defaults(backend["pre_tokenizer"]),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


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
    added = sorted(settings.get("added_tokens_decoder", {}).items(), key=lambda one: int(one[0]))
    rules.add_tokens([tokenizers.AddedToken(**token) for _, token in added])
    named = {name: _content(settings[name]) for name in _NAMED if settings.get(name)}
    special = [tokenizers.AddedToken(one, special=True, normalized=False) for one in named.values()]
    rules.add_special_tokens(special)
    return _Stored(rules, named, read_templates(directory, settings))


def _content(token: str | Mapping[str, Any]) -> str:
    """The text of a token, which some files give with its matching options."""
    return token if isinstance(token, str) else str(token["content"])


def _of_gguf(path: Path) -> _Stored:
    """The tokenizer of a GGUF file without a tokenizer.json. Creating it takes many seconds, so it
    is cached for later starts.
    """
    state = path.stat()
    facts = f"{path.resolve()} {state.st_size} {state.st_mtime_ns} {tokenizers.__version__}"
    kept = cache_directory("tokenizers") / f"{hashlib.sha256(facts.encode()).hexdigest()}.json"
    if kept.is_file():
        rules, named, templates = read_json(kept, UnsupportedModel).value
        return _Stored(tokenizers.Tokenizer.from_str(rules), named, named_templates(templates))
    made = _made_of_gguf(path)
    with suppress(OSError):  # without a cache it is created again
        write_whole(kept, json.dumps([made.rules.to_str(), made.named, made.templates]))
    return made


def _made_of_gguf(path: Path) -> _Stored:
    """The tokenizer that transformers creates from a GGUF file."""
    require("torch", f"{path} without its checkpoint's tokenizer.json beside it", "transformers")
    from transformers import AutoTokenizer

    made: Any = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    templates = named_templates(made.chat_template)
    return _Stored(made.backend_tokenizer, dict(made.special_tokens_map), templates)


def _flaw(error: UnicodeEncodeError) -> str:
    """The flaw of a text that is not Unicode: a byte of a command line that is not UTF-8, or half
    of a surrogate pair.
    """
    half = ord(error.object[error.start])
    if 0xDC80 <= half <= 0xDCFF:  # as Python reads arguments
        byte = f"byte 0x{half - 0xDC00:02x} at position {error.start}"
        return f"UTF-8: {byte}; convert it, as with iconv -t utf-8"
    return f"Unicode: half of a surrogate pair (U+{half:04X}) at position {error.start}"
