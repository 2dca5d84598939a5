"""Prompts are those of the target's files, whatever the draft's files say."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Rules
from transformers import AutoTokenizer

import outrider
from grpc_comm.client.channel import Channel
from grpc_comm.client.connection import connect
from grpc_comm.server.server import BackgroundServer
from inference.errors import InvalidRequest, Mismatch
from inference.text.tokenizer import Tokenizer
from inference.text.tokenizer_settings import TokenizerSettings
from outrider.client.connecting import target_tokenizer
from outrider.models.found_model import EMBEDDED
from outrider.options.roles import FusedTargetRole
from outrider.target.target import load_target
from tests.support.models import write_checkpoint_with_tokenizer

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
ASKED = [{"role": "user", "content": "def f(x): <more>"}]
VOCABULARY = Tokenizer(EMBEDDED / "target").vocabulary


def settings_of(directory: Path, **changes: Any) -> None:
    """Change fields of tokenizer_config.json; None removes one."""
    path = directory / "tokenizer_config.json"
    raw = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in raw.items() if value is not None}))


def add_token(directory: Path, text: str = "<more>") -> None:
    path = str(directory / "tokenizer.json")
    rules = Rules.from_file(path)
    rules.add_special_tokens([AddedToken(text, special=True)])
    rules.save(path)


def no_first_token(directory: Path) -> None:
    path = directory / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"post_processor": None}))


def model(directory: Path, ids: int = VOCABULARY, **config: Any) -> Path:
    write_checkpoint_with_tokenizer(directory, vocab_size=ids, eos_token_id=None, **config)
    settings_of(directory, chat_template=TEMPLATE)
    return directory


DRAFTS: dict[str, tuple[Callable[[Path], object], int]] = {
    "another template": (lambda at: settings_of(at, chat_template="You are Draft."), 0),
    "no template": (lambda at: settings_of(at, chat_template=None), 0),
    "no first token": (no_first_token, 0),
    "another pad token": (lambda at: settings_of(at, pad_token="<|pad|>"), 1),
    "one more token": (add_token, 1),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[outrider.RunningTarget]:
    with outrider.serve(str(model(tmp_path_factory.mktemp("target"))), port=0) as running:
        yield running


def told(address: str, **client: Any) -> list[tuple[int, list[int]]]:
    """Tokens of the prompt, and ids of the text, of a chat and of a raw prompt."""
    rounds: dict[str, Any] = {"tree_nodes": 16} if client["draft"] is not False else {}
    with outrider.connect(address, **client, **rounds) as engine:
        made = [engine.chat(ASKED, max_tokens=6), engine.generate("def f(", max_tokens=6)]
    drafts = client["draft"] is not False
    assert all((one.draft_calls > 0) == drafts for one in made), "the draft takes part"
    return [(one.prompt_tokens, one.token_ids) for one in made]


@pytest.mark.parametrize("case", DRAFTS)
def test_a_text_does_not_depend_on_the_drafts_files(
    case: str, target: outrider.RunningTarget, tmp_path: Path
) -> None:
    change, more = DRAFTS[case]
    draft = model(tmp_path / "draft", VOCABULARY + more, seed=3, num_hidden_layers=1)
    change(draft)
    drafted = told(target.address, draft=str(draft))
    theirs = AutoTokenizer.from_pretrained(model(tmp_path / "reference"))
    ids = theirs.apply_chat_template(ASKED, add_generation_prompt=True, return_dict=False)
    assert drafted[0][0] == len(ids)
    assert drafted[1][0] == len(theirs("def f(")["input_ids"])
    assert drafted == told(target.address, draft=False, model=str(tmp_path / "reference"))


def test_a_draft_may_lack_a_token_of_the_target_but_none_may_differ(tmp_path: Path) -> None:
    larger = model(tmp_path / "larger", VOCABULARY + 1)
    add_token(larger)
    draft, other = model(tmp_path / "draft", num_hidden_layers=1), tmp_path / "other"
    add_token(model(other, VOCABULARY + 1), "<other>")
    with outrider.serve(str(larger), port=0) as running:
        drafted = told(running.address, draft=str(draft))
        assert drafted == told(running.address, draft=False, model=str(larger))
        with (
            pytest.raises(Mismatch, match=f"id {VOCABULARY} is '<other>' and '<more>'"),
            outrider.connect(running.address, draft=str(other)),
        ):
            pass


def test_a_draft_beside_its_target_may_have_a_token_more(tmp_path: Path) -> None:
    larger, draft = model(tmp_path / "larger"), model(tmp_path / "draft", VOCABULARY + 1)
    add_token(draft)
    role = FusedTargetRole(model=str(larger), draft_model=str(draft), port=0)
    with BackgroundServer(load_target(role)) as server:
        made = told(str(server.address), draft=False, model=str(larger))
        assert made == told(str(server.address), draft=False, model=str(draft))


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "2 s"),
        ("{{ 'x' * 10 ** 10 }}", "512 MiB"),
        ("{{ 'x' * 2 ** 25 }}", "16,777,216 characters"),
        ("{{ 1 / 0 }}", "in line 1: division by zero"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% for %}", "Expected"),
    ],
)
def test_a_template_that_a_target_sends_is_bounded(template: str, words: str) -> None:
    here = Tokenizer(EMBEDDED / "target")
    settings = replace(here.settings, templates={"default": template})
    with pytest.raises(InvalidRequest, match=words):
        here.with_settings(settings).encode_chat(ASKED)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 10_000,
        b" " * (3 * 2**20 + 1),
        b'{"vocabulary": 5, "cores": ["x"], "added": 1, "post_processor": 1, "decoder": 1, '
        b'"named": 1, "templates": 1}',
    ],
)
def test_settings_that_cannot_be_read_are_refused(content: bytes) -> None:
    with pytest.raises(Mismatch, match="the target's tokenizer settings"):
        TokenizerSettings.read(content)


def test_settings_that_make_no_tokenizer_are_refused() -> None:
    tokenizer = Tokenizer(EMBEDDED / "target")
    changes: list[tuple[str, Any, str]] = [
        ("post_processor", {"type": "Nonsense"}, "PostProcessor"),
        ("decoder", {"type": "Replace", "pattern": {"Regex": "(a*)*b"}, "content": ""}, "decoder"),
        ("cores", ["0"], "rules for splitting text"),
        ("added", [{"id": 5, "content": "<x>", "special": True}], "missing field"),
    ]
    for field, value, words in changes:
        with pytest.raises(Mismatch, match=words):
            tokenizer.with_settings(replace(tokenizer.settings, **{field: value}))


def test_a_text_ends_at_the_tokenizers_end_and_at_a_special_token_that_is_a_stop_string(
    tmp_path: Path,
) -> None:
    """The model says the same whatever its files name as special."""
    free, prompt = model(tmp_path / "free"), "def f("
    settings_of(free, eos_token=None)

    def made(directory: Path, **parameters: Any) -> outrider.Completion:
        with (
            outrider.serve(str(directory), port=0) as running,
            outrider.connect(running.address, draft=False, model=str(free)) as engine,
        ):
            return engine.generate(prompt, max_tokens=12, **parameters)

    ids, rules = made(free).token_ids, Rules.from_file(str(free / "tokenizer.json"))
    words = [str(rules.id_to_token(token)) for token in ids]
    place = next(at for at, word in enumerate(words) if at and word not in [*words[:at], *prompt])
    ways: dict[str, dict[str, Any]] = {"eos_token": {}, "pad_token": {"stop": [words[place]]}}
    for name, parameters in ways.items():
        ending = model(tmp_path / name)
        settings_of(ending, **{"eos_token": None, name: words[place]})
        text = made(ending, **parameters)
        assert (text.finish_reason, text.token_ids) == ("stop", ids[: place + 1])
        assert text.stopped_by == "".join(parameters.get("stop", ()))
        assert not text.text.endswith(words[place])


def test_settings_are_fetched_once_and_those_of_another_digest_are_refused(
    target: outrider.RunningTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    here = Tokenizer(EMBEDDED / "target")
    with connect(target.address) as there:
        whole = target_tokenizer(there, here, "here").settings
        assert whole.digest == there.description.settings_digest != here.settings.digest
        monkeypatch.setattr(Channel, "tokenizer_settings", lambda *_: b"{}")
        assert target_tokenizer(there, here, "here").settings == whole
        with pytest.raises(Mismatch, match="tokenizer settings that differ"):
            there.tokenizer_settings()


def test_a_target_of_an_older_version_takes_its_own_tokenizer_alone(
    target: outrider.RunningTarget, tmp_path: Path
) -> None:
    here = Tokenizer(EMBEDDED / "target")
    with connect(target.address) as there:
        there.description = replace(there.description, settings_digest="")
        assert target_tokenizer(there, here, "here") is here
        larger = model(tmp_path / "larger", VOCABULARY + 1)
        add_token(larger)
        with pytest.raises(Mismatch, match="an older target"):
            target_tokenizer(there, Tokenizer(larger), "here")
