"""Tokenizer settings: everything but vocabulary and merges that affects encoding and decoding. A
target sends them to clients, whose draft's files may differ. The vocabulary must be equal anyway,
so a hash of it is enough.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from inference.errors import Mismatch, UnsupportedModel
from inference.files.json_file import DEEPEST, Json, deeper

MAX_BYTES = 3 << 20
"""Maximum bytes of settings in a message, below gRPC's limit."""

MAX_TEMPLATES = 32

DEFAULT, TOOL_USE = "default", "tool_use"
"""Names of chat templates: the default one, and an optional one for chats with tools."""

TEMPLATES = "additional_chat_templates"
"""Directory with a file for each named chat template."""

_FILE = "chat_template.jinja"


@dataclass(frozen=True)
class TokenizerSettings:
    """Settings of a tokenizer.

    vocabulary: the highest token id plus one
    cores: two hashes of vocabulary, merges, normaliser and pre-tokeniser: with and without added
        tokens, since only some files list added tokens in the vocabulary
    added: the added tokens in the format of tokenizer.json
    post_processor, decoder: in the format of tokenizer.json
    named: special tokens by their names in chat templates, such as eos_token
    templates: chat templates by name
    """

    vocabulary: int
    cores: list[str]
    added: list[dict[str, Any]]
    post_processor: Any
    decoder: Any
    named: Mapping[str, str]
    templates: Mapping[str, str]

    @cached_property
    def content(self) -> bytes:
        """The settings in the format that is sent to clients."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the content, in hexadecimal."""
        return hashlib.sha256(self.content).hexdigest()

    def check_size(self) -> None:
        """Raise UnsupportedModel if the settings exceed the limits of clients."""
        if len(self.content) > MAX_BYTES or len(self.templates) > MAX_TEMPLATES:
            raise UnsupportedModel(
                f"the tokenizer's settings have {len(self.content):,} bytes and "
                f"{len(self.templates)} chat templates: up to {MAX_BYTES:,} and {MAX_TEMPLATES} "
                "can be sent to clients"
            )

    @property
    def ids(self) -> dict[int, str]:
        """The added tokens by id."""
        return {token["id"]: token["content"] for token in self.added}

    @classmethod
    def read(cls, content: bytes) -> TokenizerSettings:
        """Parse settings from a target. Raises Mismatch if they are invalid."""
        try:
            value = json.loads(content.decode() if len(content) <= MAX_BYTES else "")
            if deeper(value, DEEPEST):
                raise ValueError("it nests too deep")
        except (ValueError, RecursionError) as error:
            raise Mismatch(f"the target's tokenizer settings cannot be read: {error}") from error
        raw = Json(value, "the target's tokenizer settings", Mismatch)
        raw.keys(cls.__dataclass_fields__.keys())
        added = raw.field("added")
        for token in added.items():
            token.field("id").integer()
            token.field("content").text()
            token.field("special").flag()
        templates = raw.field("templates").fields()
        if len(templates) > MAX_TEMPLATES:
            raw.field("templates").refuse(f"a list of up to {MAX_TEMPLATES}")
        return cls(
            raw.field("vocabulary").integer(1),
            list(raw.field("cores").map(Json.line)),
            added.value,
            raw.field("post_processor").value,
            raw.field("decoder").value,
            {name: entry.text() for name, entry in raw.field("named").fields().items()},
            {name: entry.text() for name, entry in templates.items()},
        )

    def disagreement(self, settings: TokenizerSettings) -> str:
        """Return why an id has different meanings in two tokenizers; empty if none does."""
        if not {*self.cores} & {*settings.cores}:
            return "their vocabularies, or their rules for splitting text, differ"
        mine, theirs = self.ids, settings.ids
        wrong = sorted(token for token in mine.keys() & theirs if mine[token] != theirs[token])
        return f"id {wrong[0]} is {mine[wrong[0]]!r} and {theirs[wrong[0]]!r}" if wrong else ""


class TokenizerIdentity(NamedTuple):
    """Shows whether two tokenizers produce the same ids.

    fingerprint: see Tokenizer.fingerprint()
    settings: None if an older target does not send them
    """

    fingerprint: str
    settings: TokenizerSettings | None = None

    def disagreement(self, identity: TokenizerIdentity) -> str:
        """Return why a draft and a target with these tokenizers do not match; empty if they do.

        See TokenizerSettings.disagreement(). Unless both have settings, the fingerprints must be
        equal.
        """
        if self.settings is not None and identity.settings is not None:
            return self.settings.disagreement(identity.settings)
        equal = self.fingerprint == identity.fingerprint
        return "" if equal else "an older target needs exactly its own tokenizer"


def read_templates(directory: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the chat templates of a directory by name: from separate files, otherwise from
    tokenizer_config.json, whose content is `settings`.
    """
    paths = sorted((directory / TEMPLATES).glob("*.jinja"))
    files = {path.stem: path for path in paths}
    if (directory / _FILE).is_file():
        files[DEFAULT] = directory / _FILE
    if files:
        return {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    return named_templates(settings.get("chat_template"))


def named_templates(templates: Any) -> dict[str, str]:
    """Return chat templates by name, from a single template, a list of named ones, or a mapping."""
    if isinstance(templates, Mapping):
        return {str(name): str(template) for name, template in templates.items()}
    if isinstance(templates, list):
        return {str(entry["name"]): str(entry["template"]) for entry in templates}
    return {DEFAULT: str(templates)} if templates else {}


def core_hashes(backend: Mapping[str, Any]) -> list[str]:
    """Return TokenizerSettings.cores for the content of a tokenizer.json."""
    added = {token["content"] for token in backend["added_tokens"]}
    return [_core_hash(backend, without) for without in (set[str](), added)]


def fingerprint(backend: Mapping[str, Any], ids: Mapping[str, int]) -> str:
    """Return Tokenizer.fingerprint() for the content of a tokenizer.json.

    ids: token -> id
    """
    special = sorted(
        (token["id"], token["content"]) for token in backend["added_tokens"] if token["special"]
    )
    return _hash_of(backend, ids=sorted(ids.items()), special=special)


def _core_hash(backend: Mapping[str, Any], added: set[str]) -> str:
    vocabulary = backend["model"].get("vocab") or ()
    if isinstance(vocabulary, Mapping):
        pieces = sorted((token, piece) for piece, token in vocabulary.items() if piece not in added)
    else:  # a unigram model: pieces with scores, in the order of ids
        pieces = [(at, piece) for at, piece in enumerate(vocabulary) if piece[0] not in added]
    return _hash_of(backend, pieces=pieces)


def _hash_of(backend: Mapping[str, Any], **facts: Any) -> str:
    """Return a hash of merges, normaliser, pre-tokeniser and model, and of further facts."""
    model = dict(backend["model"])
    merges = model.pop("merges", None) or ()
    for name in ("vocab", "dropout"):
        model.pop(name, None)
    facts |= {
        "merges": [" ".join(merge) if isinstance(merge, list) else merge for merge in merges],
        "model": _without_defaults(model),
        "normalizer": _without_defaults(backend["normalizer"]),
        "pre_tokenizer": _without_defaults(backend["pre_tokenizer"]),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _without_defaults(value: Any) -> Any:
    """Return the value without null and false, which only some library versions write."""
    if isinstance(value, dict):
        return {
            key: _without_defaults(item) for key, item in value.items() if item not in (None, False)
        }
    return [_without_defaults(item) for item in value] if isinstance(value, list) else value


def has_regex(value: Any) -> bool:
    """Whether a post-processor or decoder has a regular expression, whose time is unbounded."""
    if isinstance(value, Mapping):
        return "Regex" in value or any(map(has_regex, value.values()))
    return isinstance(value, list) and any(map(has_regex, value))
