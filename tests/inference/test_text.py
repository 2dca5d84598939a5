"""Text and ids: the embedded tokenizer, incremental detokenizing, fingerprints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inference.errors import InvalidRequest, UnsupportedModel
from inference.text import Tokenizer
from outrider.models.loading import EMBEDDED

SAMPLES = [
    "def main():\n    return 'naïve — 日本語 🙂'\n",
    "\t\tx = 1\r\n",
    " leading",
    "🙂🙂",
    "a" * 300,
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(EMBEDDED / "target")


@pytest.mark.parametrize("text", SAMPLES)
def test_text_survives_encoding_and_streaming(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    stream = tokenizer.stream(ids[:1])
    pieces = [stream.push(token) for token in ids[1:]] + [stream.finish()]
    assert "".join(pieces) == text
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


def test_what_is_streamed_after_a_prompt_continues_it_exactly(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("for x in range(10):\n    print('🙂', x)\n")
    for cut in range(1, len(ids)):
        stream = tokenizer.stream(ids[:cut])
        text = "".join([stream.push(token) for token in ids[cut:]] + [stream.finish()])
        assert tokenizer.decode(ids).endswith(text)
        assert len(text) >= len(tokenizer.decode(ids)) - len(tokenizer.decode(ids[:cut]))


def test_a_broken_character_at_the_end_is_shown_once_nothing_follows(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("🙂")
    stream = tokenizer.stream(ids[:1])
    assert stream.push(ids[1]) == ""
    assert stream.finish() == "\N{REPLACEMENT CHARACTER}"


def test_a_prompt_starts_with_the_beginning_of_text_token(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("x")[0] == tokenizer.encode("y")[0]
    assert tokenizer.decode(tokenizer.encode("x")) == "x"


def test_an_empty_prompt_and_a_missing_chat_template_are_refused(tmp_path: Path) -> None:
    tokenizer = altered(tmp_path, template="")
    with pytest.raises(InvalidRequest, match="empty"):
        tokenizer.encode("")
    with pytest.raises(InvalidRequest, match="chat template"):
        tokenizer.encode("x", chat=True)


def test_a_chat_begins_with_the_templates_text_and_ends_where_the_answer_begins(
    tmp_path: Path,
) -> None:
    turns = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
    tokenizer = altered(tmp_path, template=turns + "{% if add_generation_prompt %}>{% endif %}")
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert tokenizer.decode(tokenizer.encode_chat(messages)) == "user:a;assistant:b;>"
    with pytest.raises(InvalidRequest, match="message"):
        tokenizer.encode_chat([])


def test_messages_that_a_template_refuses_are_told_in_its_words(tmp_path: Path) -> None:
    tokenizer = altered(tmp_path, template="{{ raise_exception('users first') }}")
    with pytest.raises(InvalidRequest, match="users first"):
        tokenizer.encode("x", chat=True)


def test_a_directory_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(UnsupportedModel, match="tokenizer"):
        Tokenizer(tmp_path)


def altered(tmp_path: Path, template: str | None = None, **changes: object) -> Tokenizer:
    """The embedded tokenizer with parts of its tokenizer.json replaced; a callable gets the part
    and changes it.

    template: another chat template, empty for none
    """
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (tmp_path / name).write_bytes((EMBEDDED / "target" / name).read_bytes())
    if template is not None:
        settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
        settings["chat_template"] = template or None
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    raw = json.loads((tmp_path / "tokenizer.json").read_text())
    for part, change in changes.items():
        raw[part] = change(raw[part]) if callable(change) else change
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    return Tokenizer(tmp_path)


def test_both_embedded_models_have_one_tokenizer(tokenizer: Tokenizer) -> None:
    assert Tokenizer(EMBEDDED / "draft").fingerprint() == tokenizer.fingerprint()


def test_the_fingerprint_does_not_depend_on_file_bytes(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    assert altered(tmp_path).fingerprint() == tokenizer.fingerprint()


def swap_two_ids(model: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    ids, (one, other) = model["vocab"], list(model["vocab"])[300:302]
    ids[one], ids[other] = ids[other], ids[one]
    return model


BYTE_LEVEL = ("add_prefix_space", "trim_offsets", "use_regex")


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("model", swap_two_ids),
        ("model", lambda model: {**model, "merges": model["merges"][:-1]}),
        ("normalizer", {"type": "NFC"}),
        ("pre_tokenizer", {"type": "ByteLevel"} | dict.fromkeys(BYTE_LEVEL, True)),
    ],
    ids=["ids", "merges", "normalizer", "pre-tokenizer"],
)
def test_the_fingerprint_changes_with_anything_that_changes_ids(
    tokenizer: Tokenizer, tmp_path: Path, part: str, change: object
) -> None:
    assert altered(tmp_path, **{part: change}).fingerprint() != tokenizer.fingerprint()
