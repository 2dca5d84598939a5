"""Text and ids: the embedded tokenizer, incremental detokenizing, fingerprints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Rules

from inference.errors import InvalidRequest, UnsupportedModel
from inference.text.tokenizer import Tokenizer
from outrider.models.found_model import EMBEDDED

SAMPLES = [
    "def main():\n    return 'naïve — 日本語 🙂'\n",
    "\t\tx = 1\r\n",
    " leading",
    "🙂🙂",
    "a" * 300,
]


def test_a_chat_ends_before_the_answer_or_where_its_last_message_does(tmp_path: Path) -> None:
    """Its template has all variables, of which none replaces the messages."""
    turns = "{% for m in messages %}{{ m.role }}:{{ m.content | trim }};{% endfor %}"
    tokenizer = altered(tmp_path, template=turns + "{% if add_generation_prompt %}>{% endif %}")
    messages = [{"role": "user", "content": " a "}, {"role": "assistant", "content": "b ="}]
    assert tokenizer.decode(tokenizer.encode_chat(messages)) == "user:a;assistant:b =;>"
    continued = tokenizer.encode_chat(messages, continues=True)
    assert tokenizer.decode(continued) == "user:a;assistant:b ="
    with pytest.raises(InvalidRequest, match="message"):
        tokenizer.encode_chat([])
    with pytest.raises(InvalidRequest, match="empty"):
        tokenizer.encode("")
    names = "{{ enable_thinking }};{{ add_generation_prompt }};{{ messages[0].content }}"
    tokenizer = altered(tmp_path, template=names)
    variables = {"enable_thinking": False, "add_generation_prompt": False, "messages": "no"}
    assert tokenizer.decode(tokenizer.encode_chat(messages, (), variables)) == "False;False; a "
    silent = altered(tmp_path, template="{% for m in messages %}{{ m.role }}{% endfor %}")
    with pytest.raises(InvalidRequest, match="continued"):
        silent.encode_chat(messages, continues=True)
    with pytest.raises(InvalidRequest, match="chat template"):
        altered(tmp_path, template="").encode("x", chat=True)
    with pytest.raises(InvalidRequest, match="rag"):
        altered(tmp_path, template=listed({"rag": "x"})).encode("x", chat=True)


@pytest.mark.parametrize(
    "template",
    [
        "{% for k, v in messages[0].content|items %}{% endfor %}",
        "{{ 1 // 0 }}",
        "{{ 1 + 'a' }}",
        "{{ 10.0 ** 1000 }}",
        "{{ messages[7].content.a }}",
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{{ raise_exception('users first') }}",
        "{{ 1 | nonsense }}",
    ],
)
def test_whatever_a_template_raises_is_told_with_its_line(template: str, tmp_path: Path) -> None:
    words = "users first" if "users first" in template else ""
    with pytest.raises(InvalidRequest, match=rf"template .* line 2: .*{words}"):
        altered(tmp_path, template="\n" + template).encode("x", chat=True)


def test_the_message_that_a_template_fails_at_is_named(tmp_path: Path) -> None:
    template = "{% set first = 1 %}{% for turn in messages %}{{ turn.content.x }}{% endfor %}"
    tokenizer = altered(tmp_path, template=template + "{{ 1 / 0 }}")
    turns = [{"role": "user", "content": {"x": "a"}}, {"role": "user", "content": {}}]
    with pytest.raises(InvalidRequest, match="division"):
        tokenizer.encode_chat(turns)
    turns.append({"role": "tool"})
    with pytest.raises(InvalidRequest, match=r"messages\[2\] .* line 1: "):
        tokenizer.encode_chat(turns)


def altered(tmp_path: Path, template: object = None, **changes: Any) -> Tokenizer:
    """The embedded tokenizer with these parts of tokenizer.json and this chat template."""
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


def swap_two_ids(model: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    ids, (one, other) = model["vocab"], list(model["vocab"])[300:302]
    ids[one], ids[other] = ids[other], ids[one]
    return model


def test_the_fingerprint_changes_with_what_changes_ids_alone(tmp_path: Path) -> None:
    own = Tokenizer(EMBEDDED / "target").fingerprint()
    assert Tokenizer(EMBEDDED / "draft").fingerprint() == own
    assert altered(tmp_path).fingerprint() == own  # its files have other bytes
    options = dict.fromkeys(("add_prefix_space", "trim_offsets", "use_regex"), True)
    changes: list[tuple[str, Any]] = [
        ("model", swap_two_ids),
        ("model", lambda model: {**model, "merges": model["merges"][:-1]}),
        ("normalizer", {"type": "NFC"}),
        ("pre_tokenizer", {"type": "ByteLevel"} | options),
    ]
    for part, change in changes:
        assert altered(tmp_path, **{part: change}).fingerprint() != own, part


SPECIAL = ["<s>", "</s>", "<|role|>", "<|text|>", "[INST]", "[/INST]"]
TURNS = [
    {"role": "system", "content": "  short <answers> "},
    {"role": "user", "content": "naïve 🙂?\n"},
    {"role": "assistant", "content": "[INST] & so on"},
    {"role": "user", "content": "and </s>?"},
]
TEMPLATE = """{{- bos_token }}
{% set seen = namespace(users=0) %}
{%- for message in messages %}
  {% if message.role == 'user' %}
    {% set seen.users = seen.users + 1 %}
    {% if seen.users > 2 %}{% break %}{% endif %}
<|role|> {{ message.role }} <|text|>\n{{ message['content'] | trim }} {{ strftime_now('%Y') }}
  {% elif message.role == 'assistant' %}
{% generation %}{{ message | tojson }}{{ eos_token }}{{ unk_token }}{% endgeneration %}
  {% elif tools is not none %}
    {{- raise_exception('no tools') }}
  {% endif %}
[/INST] {{ '[INST]' if loop.last }}
{% endfor %}
{%- if add_generation_prompt %}{{ '<|role|>assistant' }}{% endif %}"""


def family(directory: Path, kind: str) -> Path:
    """A directory with a small tokenizer of this kind, and its chat template."""
    settings: dict[str, Any] = {"bos_token": "<s>", "pad_token": "<pad>"}
    settings |= {"eos_token": {"__type": "AddedToken", "content": "</s>"}}
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast"}
    by_bytes, level = kind == "mistral", pre_tokenizers.ByteLevel
    letters = [f"<0x{byte:02X}>" for byte in range(256)] if by_bytes else sorted(level.alphabet())
    spelt = dict.fromkeys([*SPECIAL, *letters, "a", "d", "e", "de", "▁"])
    pieces = {piece: id_ for id_, piece in enumerate(spelt)}
    rules = Rules(models.BPE(pieces, [("d", "e")], byte_fallback=by_bytes))
    rules.pre_tokenizer, rules.decoder = level(add_prefix_space=False), decoders.ByteLevel()
    rules.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    if by_bytes:
        rules.pre_tokenizer = pre_tokenizers.Metaspace()
        inner = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
        rules.decoder = decoders.Sequence([*inner, decoders.Strip(" ", 1, 0)])
        settings["chat_template"] = listed({"default": TEMPLATE})
    if kind == "qwen":
        rules.normalizer = normalizers.NFC()
        added = {"content": "<think>", "special": False, "normalized": False}
        settings["added_tokens_decoder"] = {str(len(pieces)): added}
        (directory / "chat_template.jinja").write_text(TEMPLATE)
    else:
        first = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
        rules.post_processor = first
    if kind == "llama":
        settings["chat_template"] = TEMPLATE
    rules.enable_truncation(4)
    rules.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen", "embedded"])
def test_ids_texts_and_chats_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    directory = EMBEDDED / "target" if kind == "embedded" else family(tmp_path, kind)
    ours, theirs = Tokenizer(directory), PreTrainedTokenizerFast.from_pretrained(directory)
    assert ours.ids() == theirs.get_vocab()
    for text in [*SAMPLES, "<think></s>[INST] e\u0301 <pad>"]:
        ids = theirs.encode(text)
        assert ours.encode(text) == ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    for turns in (TURNS[:2], TURNS):
        text = theirs.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        assert ours.encode_chat(turns) == theirs.encode(text, add_special_tokens=False)


NAMED = {"default": "{{ messages[0].content }}", "tool_use": "T{{ tools | length }}"}
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def listed(templates: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "template": template} for name, template in templates.items()]


def as_files(directory: Path) -> object:
    (directory / "additional_chat_templates").mkdir()
    (directory / "chat_template.jinja").write_text(NAMED["default"])
    (directory / "additional_chat_templates" / "tool_use.jinja").write_text(NAMED["tool_use"])
    return "not this one"


@pytest.mark.parametrize("write", [as_files, lambda _: NAMED, lambda _: listed(NAMED)])
def test_of_named_templates_that_of_transformers_is_taken(
    write: Callable[[Path], object], tmp_path: Path
) -> None:
    from transformers import PreTrainedTokenizerFast

    ours = altered(tmp_path, template=write(tmp_path))
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for tools in (None, TOOLS):
        text = theirs.apply_chat_template(TURNS, tools=tools, tokenize=False)
        assert ours.encode_chat(TURNS, tools or ()) == theirs.encode(text, add_special_tokens=False)
    assert ours.template == NAMED["tool_use"]


def test_a_directory_without_a_tokenizer_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(UnsupportedModel, match="tokenizer"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"\n")
    with pytest.raises(UnsupportedModel, match=r"tokenizer\.json.*save_pretrained"):
        Tokenizer(tmp_path)


@pytest.mark.parametrize(
    "template", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{% for %}"]
)
def test_a_template_cannot_leave_its_sandbox(template: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="template"):
        altered(tmp_path, template=template).encode("x", chat=True)
