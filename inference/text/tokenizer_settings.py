"""The settings of a tokenizer: all that determines prompts and texts but vocabulary and merges.

A target sends its settings to clients, whose draft's files may have others: another chat template,
another first token, an extra token. The vocabulary and merges are megabytes and must be equal
anyway, so a hash of them is enough.
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
"""Bytes of settings in a message, below gRPC's own limit."""

MAX_TEMPLATES = 32

DEFAULT, TOOL_USE = "default", "tool_use"
"""Names of chat templates: of every chat, and of chats with tools if there is a separate one."""

TEMPLATES = "additional_chat_templates"
"""Directory of the files of named chat templates, beside that of the default one."""

_FILE = "chat_template.jinja"


@dataclass(frozen=True)
class TokenizerSettings:
    """Settings of a tokenizer.

    vocabulary: one past the greatest id
    cores: hashes of vocabulary, merges, normaliser and pre-tokeniser: of the whole vocabulary, and
        of that without added tokens, since some files list these among it
    added: the added tokens as tokenizer.json lists them
    post_processor, decoder: as tokenizer.json has them
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
        """The settings as sent to clients."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the content, in hexadecimal digits."""
        return hashlib.sha256(self.content).hexdigest()

    def check_size(self) -> None:
        """Raise UnsupportedModel for settings above the clients' limits."""
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
        """Read settings that a target sent. Raises Mismatch for anything else."""
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
            list(raw.field("cores").each(Json.line)),
            added.value,
            raw.field("post_processor").value,
            raw.field("decoder").value,
            {name: one.text() for name, one in raw.field("named").fields().items()},
            {name: one.text() for name, one in templates.items()},
        )

    def disagreement(self, other: TokenizerSettings) -> str:
        """Reason why common ids of two tokenizers do not mean the same; empty where they do."""
        if not {*self.cores} & {*other.cores}:
            return "their vocabularies, or their rules for splitting text, differ"
        mine, theirs = self.ids, other.ids
        wrong = sorted(one for one in mine.keys() & theirs if mine[one] != theirs[one])
        return f"id {wrong[0]} is {mine[wrong[0]]!r} and {theirs[wrong[0]]!r}" if wrong else ""


class TokenizerIdentity(NamedTuple):
    """Shows whether two tokenizers give the same ids.

    fingerprint: see Tokenizer.fingerprint()
    settings: None where a target of an older version does not send them
    """

    fingerprint: str
    settings: TokenizerSettings | None = None

    def disagreement(self, other: TokenizerIdentity) -> str:
        """Reason why a draft and a target with these tokenizers do not match; empty if they do.

        See TokenizerSettings.disagreement(). Without the settings of both,
        their fingerprints have to be equal.
        """
        if self.settings is not None and other.settings is not None:
            return self.settings.disagreement(other.settings)
        equal = self.fingerprint == other.fingerprint
        return "" if equal else "an older target needs exactly its own tokenizer"


def read_templates(directory: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """The chat templates of a directory by name: those in separate files, else those of its
    tokenizer_config.json. `settings` is the content of that.
    """
    more = sorted((directory / TEMPLATES).glob("*.jinja"))
    files = {one.stem: one for one in more}
    if (directory / _FILE).is_file():
        files[DEFAULT] = directory / _FILE
    if files:
        return {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    return named_templates(settings.get("chat_template"))


def named_templates(given: Any) -> dict[str, str]:
    """Chat templates by name, of one template, a list of named ones, or a mapping."""
    if isinstance(given, Mapping):
        return {str(name): str(template) for name, template in given.items()}
    if isinstance(given, list):
        return {str(one["name"]): str(one["template"]) for one in given}
    return {DEFAULT: str(given)} if given else {}


def core_hashes(backend: Mapping[str, Any]) -> list[str]:
    """The hashes `cores` of a parsed tokenizer.json."""
    added = {token["content"] for token in backend["added_tokens"]}
    return [_core_hash(backend, without) for without in (set[str](), added)]


def _core_hash(backend: Mapping[str, Any], added: set[str]) -> str:
    model = dict(backend["model"])
    vocabulary, merges = model.pop("vocab", None) or (), model.pop("merges", None) or ()
    model.pop("dropout", None)
    if isinstance(vocabulary, Mapping):
        pieces = sorted((token, piece) for piece, token in vocabulary.items() if piece not in added)
    else:  # of a unigram model, in the order of ids, with scores
        pieces = [(at, piece) for at, piece in enumerate(vocabulary) if piece[0] not in added]
    parts = {
        "pieces": pieces,
        "merges": [" ".join(one) if isinstance(one, list) else one for one in merges],
        "model": without_defaults(model),
        "normalizer": without_defaults(backend["normalizer"]),
        "pre_tokenizer": without_defaults(backend["pre_tokenizer"]),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def without_defaults(value: Any) -> Any:
    """The value without nulls and falses, which some library versions write and others omit."""
    if isinstance(value, dict):
        return {
            key: without_defaults(part) for key, part in value.items() if part not in (None, False)
        }
    return [without_defaults(part) for part in value] if isinstance(value, list) else value


def has_regex(value: Any) -> bool:
    """Whether a post-processor or decoder has a regular expression, whose time has no bound."""
    if isinstance(value, Mapping):
        return "Regex" in value or any(map(has_regex, value.values()))
    return isinstance(value, list) and any(map(has_regex, value))
