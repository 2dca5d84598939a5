"""Conversion between text and token ids: tokenizer and chat template."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from traceback import extract_tb
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn
from uuid import uuid4

import tokenizers
from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from inference.errors import InvalidRequest, OutriderError, UnsupportedModel
from inference.extras import require
from inference.files import cache_directory, write_whole
from inference.json_file import read_json
from inference.text_stream import TextStream, TokenBytes

_NAMED = tuple(f"{kind}_token" for kind in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
"""Special tokens that chat templates know by these names."""


class _Stored(NamedTuple):
    """A tokenizer as its files have it."""

    rules: tokenizers.Tokenizer
    named: dict[str, str]  # special tokens by their names in chat templates
    template: str  # of chats; empty for none


class Tokenizer:
    """The tokenizer of a Hugging Face directory, or of a GGUF file. Raises UnsupportedModel if it
    cannot be used, and MissingExtra for a GGUF file without transformers.

    template: of chats; empty for none.
    vocabulary: one past the greatest token id.
    """

    def __init__(self, directory: Path) -> None:
        read = _of_gguf if directory.is_file() else _of_directory
        try:
            self._rules, self._named, self.template = read(directory)
            vocabulary = self.ids()
        except OutriderError:
            raise
        except Exception as error:  # the libraries' parsers raise bare Exception
            said = next(iter(str(error).splitlines()), type(error).__name__)
            raise UnsupportedModel(f"{directory}: its tokenizer cannot be read ({said})") from error
        if not vocabulary:
            raise UnsupportedModel(f"{directory}: its tokenizer.json has no tokens")
        self.vocabulary = max(vocabulary.values()) + 1
        self._bytes = TokenBytes(self._rules)

    def to_json(self) -> str:
        """The tokenizer as a tokenizer.json has it."""
        return str(self._rules.to_str())

    def ids(self) -> dict[str, int]:
        """Every token's id."""
        return dict(self._rules.get_vocab())

    def id_of(self, token: str) -> int | None:
        """The id of a token; None where the vocabulary has no such one."""
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

        messages: each with its `role` and its `content`, and what else the template reads
        tools: functions that the model is told of, as OpenAI's interface describes them
        variables: further ones of the template, such as enable_thinking
        continues: the chat ends within its last message, which is to be continued

        Raises InvalidRequest without a chat template, and where the template fails.
        """
        if not messages:
            raise InvalidRequest("a chat needs at least one message")
        if not self.template:
            raise InvalidRequest("a chat needs a model with a chat template: this one has none")
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
        text = _rendered(self.template, known)
        if end not in text:
            raise InvalidRequest("the model's chat template changes the message to be continued")
        return self._ids(text[: text.rindex(end)] if end else text, special=False)

    def _ids(self, text: str, *, special: bool = True) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"the prompt is no Unicode text: half of a pair stands at {error.start}"
            ) from error
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

    def fingerprint(self) -> str:
        """A hash of everything that turns text into ids.

        It covers token ids, special tokens, merges, normaliser and pre-tokeniser. It leaves out
        file bytes, vocabulary padding and the decoder, which differ between sizes of one family.
        """
        backend = json.loads(self.to_json())
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
            "ids": sorted(self.ids().items()),
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


def _of_directory(directory: Path) -> _Stored:
    if not (directory / "tokenizer.json").is_file():
        raise UnsupportedModel(
            f"{directory}: it has no tokenizer.json, which is needed; transformers makes one: "
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
    return _Stored(rules, named, _template(directory, settings))


def _content(token: str | Mapping[str, Any]) -> str:
    """The text of a token, which some files give with the way in which it is found."""
    return token if isinstance(token, str) else str(token["content"])


def _template(directory: Path, settings: Mapping[str, Any]) -> str:
    """The chat template: that of a file of its own, else the settings' default one."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = settings.get("chat_template") or ""
    if isinstance(template, str):
        return template
    return str({one["name"]: one["template"] for one in template}.get("default", ""))


def _of_gguf(path: Path) -> _Stored:
    """The tokenizer of a GGUF file without a tokenizer.json. Making it takes many seconds, so it is
    kept for later starts.
    """
    state = path.stat()
    facts = f"{path.resolve()} {state.st_size} {state.st_mtime_ns} {tokenizers.__version__}"
    kept = cache_directory("tokenizers") / f"{hashlib.sha256(facts.encode()).hexdigest()}.json"
    if kept.is_file():
        rules, named, template = read_json(kept, UnsupportedModel).value
        return _Stored(tokenizers.Tokenizer.from_str(rules), named, template)
    made = _made_of_gguf(path)
    with suppress(OSError):  # it is made anew where nothing can be kept
        write_whole(kept, json.dumps([made.rules.to_str(), made.named, made.template]))
    return made


def _made_of_gguf(path: Path) -> _Stored:
    """The tokenizer that transformers makes from a GGUF file."""
    require("torch", f"{path} without its checkpoint's tokenizer.json beside it", "transformers")
    from transformers import AutoTokenizer

    made: Any = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    return _Stored(made.backend_tokenizer, dict(made.special_tokens_map), made.chat_template or "")


class _Generation(Extension):
    """The tags generation and endgeneration, around words that training learns. They print
    nothing.
    """

    tags = {"generation"}  # noqa: RUF012 (jinja2's own attribute)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        inside = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(inside, lineno=line)


@lru_cache(maxsize=8)
def _compiled(template: str) -> Template:
    """A chat template, ready to be rendered in a sandbox: it comes with a model, from anybody."""
    known = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    known.filters["tojson"] = _to_json
    known.globals.update(raise_exception=_refuse, strftime_now=_now)
    return known.from_string(template)


def _rendered(template: str, variables: Mapping[str, Any]) -> str:
    """A chat in the words of its template. Raises InvalidRequest with the template's line."""
    try:
        return _compiled(template).render(variables)
    except Exception as error:  # a template is a program, and may raise whatever Python does
        lines = [
            frame.lineno
            for frame in extract_tb(error.__traceback__)
            if frame.filename == "<template>"
        ]
        line = getattr(error, "lineno", None) or (lines[-1] if lines else None)
        said = str(error) or type(error).__name__
        raise InvalidRequest(
            f"the model's chat template refuses{f' in line {line}' if line else ''}: {said}"
        ) from error


def _to_json(value: Any, ensure_ascii: bool = False, **how: Any) -> str:
    """The value as JSON. jinja2's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **how)


def _refuse(said: str) -> NoReturn:
    raise TemplateError(said)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _without_defaults(value: Any) -> Any:
    """The value without nulls and falses, which some library versions write and others omit."""
    if isinstance(value, dict):
        return {
            key: _without_defaults(part) for key, part in value.items() if part not in (None, False)
        }
    return [_without_defaults(part) for part in value] if isinstance(value, list) else value
