"""Calls of functions: how a model is told of functions, and how its calls are read."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.errors import InvalidRequest
from inference.sampling import SamplingParams
from inference.text.grammar import Grammars
from inference.text.tokenizer import Tokenizer
from outrider.text.call_reader import CallForm, CallPiece, CallReader, ToolCall, add_piece
from outrider.text.tool_calls import (
    LLAMA,
    MISTRAL,
    TAGGED,
    THOUGHTS,
    Function,
    Tools,
    call_form,
)
from tests.support.refusals import assert_refused
from tests.support.tiers import examples
from tests.support.tool_families import ADD, MARKS, STOP, TEMPLATES, with_template

FORMS = {"tagged": TAGGED, "llama": LLAMA, "mistral": MISTRAL, "": None}
NAMES = frozenset({"add", "stop"})
BOTH = Tools((Function.read(ADD), Function.read(STOP)))
NESTED = '{"x": "a}\\"b", "y": [1, {"z": 2}]}'


def read(form: CallForm, text: str, cuts: list[int], several: bool = True) -> tuple[str, list[Any]]:
    """What is said in a text that comes in pieces, and its calls."""
    reader, said, calls = CallReader(form, NAMES, several=several), "", list[ToolCall]()
    at = [0, *sorted({cut for cut in cuts if cut < len(text)}), len(text)]
    for start, end in pairwise(at):
        for part in reader.push(text[start:end]):
            if isinstance(part, str):
                said += part
            else:
                add_piece(calls, part)
    assert len({call.id for call in calls}) == len(calls)
    return said + reader.finish(), [(call.name, call.arguments) for call in calls]


STOPPED, ADDED = ("stop", "{}"), ("add", '{"x": 1}')
STOP_CALL = '{"name": "stop", "arguments": {}}'
ADD_CALL = '{"arguments": {"x": 1}, "name": "add"}'
NESTED_CALL = f'{{"name": "add", "arguments": {NESTED}}}'
LLAMA_CALL = '{"type": "function", "name": "stop", "parameters": {}}'
READ: list[tuple[CallForm, str, str, list[tuple[str, str]]]] = [
    (
        TAGGED,
        f"I add.\n<tool_call>\n{NESTED_CALL}\n</tool_call>\n<tool_call>\n{STOP_CALL}\n</tool_call>",
        "I add.",
        [("add", NESTED), STOPPED],
    ),
    (TAGGED, f"<tool_call>{STOP_CALL}</tool_call>\nso", "\nso", [STOPPED]),
    (TAGGED, '<tool_call>\n{"name": "add", "arguments": {"x', "", [("add", '{"x')]),
    (TAGGED, 'so <tool_call> <tool_call>{"name": "stop"}</tool_call>', "so <tool_call>", [STOPPED]),
    (TAGGED, f"<tool_call>{STOP_CALL[:-1]}</tool_call> so", " so", [STOPPED]),
    (TAGGED, f"<tool_call>{STOP_CALL}}}</tool_call>", "}</tool_call>", [STOPPED]),
    (TAGGED, f"<tool_call>[{STOP_CALL}, {ADD_CALL}]</tool_call> so", " so", [STOPPED, ADDED]),
    (LLAMA, f"{LLAMA_CALL}, and; so", ", and; so", [STOPPED]),
    (LLAMA, ' {"name": "add", "parameters": {"x": 1}}', "", [ADDED]),
    (LLAMA, f"<|python_tag|>{LLAMA_CALL}; {LLAMA_CALL}", "", [STOPPED, STOPPED]),
    (
        MISTRAL,
        f'[TOOL_CALLS][{ADD_CALL}, {{"id": "a", "name": "stop"}}] so',
        " so",
        [ADDED, STOPPED],
    ),
]
UNREAD: list[tuple[CallForm, str]] = [
    (TAGGED, 'no <tool_call>\n{"name'),
    (TAGGED, "Write <tool_call> and\n</tool_call>"),
    (TAGGED, "a <tool_ call> <tool"),
    (TAGGED, "<tool_call>x</tool_call> y"),
    (TAGGED, '<tool_call>{"name": "f", "arguments": {}}</tool_call>'),
    (TAGGED, " \n "),
    (LLAMA, '{"name": "Ann", "age": 3}'),
    (LLAMA, '{"answer": {"name": 3}}'),
    (LLAMA, "No. {}"),
]


WORDINGS = (
    ADD_CALL,
    r'{"name": "add", "arguments": "{\"x\": 1}"}',
    '{"id": "a1", "name": "add", "arguments": {"x": 1}}',
    '{"name": "add", "arguments": {"x": 1}, "id": "}"}',
    '{"type": "function", "function": {"name": "add", "arguments": {"x": 1}}}',
    r'{"id": "a", "function": {"name": "add", "arguments": "{\"x\": 1}"}}',
    '{ "name" : "add" , "parameters" : {"x": 1} }',
)
WITHOUT_ARGUMENTS = (
    '{"name": "add"}',
    '{"name": "add", "arguments": null}',
    '{"arguments": "", "name": "add"}',
    '{"name": "add", "arguments": {}}',
)
NO_CALLS = (
    '{"name": "add", "arguments": [1]}',
    '{"name": "add", "arguments": 1}',
    '{"name": "add", "arguments": "x = 1"}',
    '{"arguments": {}, "name": "subtract"}',
    '{"arguments": {"x": 1}}',
    '{"name": 1, "arguments": {}}',
    '{"arguments": {"x": 1}, "name": "ad',
    "{'name': 'add'}",
    '{"arguments": {"x": NaN}, "name": "add"}',
    '{"arguments": {"x": ' + "[" * 2000 + "]" * 2000 + '}, "name": "add"}',
)
CASES = [*READ, *((form, text, text, []) for form, text in UNREAD)]
for bodies, calls in ((WORDINGS, [ADDED]), (WITHOUT_ARGUMENTS, [("add", "{}")]), (NO_CALLS, [])):
    for body in bodies:
        CASES.append((LLAMA, body, "" if calls else body, calls))
        for form, opening, closing in (
            (TAGGED, "<tool_call>\n", "\n</tool_call>"),
            (MISTRAL, "[TOOL_CALLS] [", "]"),
        ):
            text = f" so\n {opening}{body}{closing}" + ("" if calls else " and\n")
            CASES.append((form, text, " so" if calls else text, calls))


@pytest.mark.parametrize(("form", "text", "said", "calls"), CASES)
@given(cuts=st.lists(st.integers(1, 120), max_size=40))
@settings(max_examples=examples(20))
def test_calls_are_read_however_the_text_is_cut(
    form: CallForm, text: str, said: str, calls: list[tuple[str, str]], cuts: list[int]
) -> None:
    assert read(form, text, cuts) == (said, calls)


def test_arguments_come_in_pieces_behind_id_and_name_and_other_names_are_text_at_once() -> None:
    reader = CallReader(TAGGED, NAMES, several=True)
    pieces = ('<tool_call>{"name": "add", ', '"arguments": ', '{"x":', " 1}}")
    head, *rest = (part for piece in pieces for part in reader.push(piece))
    assert isinstance(head, CallPiece)
    assert (head.name, len(head.id), head.arguments) == ("add", 9, "")
    assert rest == [CallPiece(0, '{"x":'), CallPiece(0, " 1}")]
    reader = CallReader(LLAMA, NAMES, several=True)
    assert reader.push('{"name": "ad') == []
    assert reader.push("am") == ['{"name": "adam']


def test_further_calls_are_dropped_where_one_is_allowed() -> None:
    _, text, said, calls = READ[0]
    assert read(TAGGED, text, [], several=False) == (said, calls[:1])


PAST = {"id": "123456789", "function": {"name": "add", "arguments": {"x": 1, "y": 2}}}
CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": "1 and 2"},
    {"role": "assistant", "content": "", "tool_calls": [PAST]},
    {"role": "tool", "content": "3", "tool_call_id": "123456789"},
]


@pytest.mark.parametrize("family", FORMS)
def test_a_model_is_told_of_functions_calls_results_and_thoughts(
    tmp_path: Path, family: str
) -> None:
    tokenizer = Tokenizer(with_template(tmp_path / "model", family))
    assert call_form(tokenizer.template) is FORMS[family]
    text = tokenizer.decode(tokenizer.encode_chat(*BOTH.for_template(CHAT, tokenizer)))
    assert json.dumps(BOTH.functions[0].described) in text
    assert '"name": "add", "arguments": {"x": 1, "y": 2}' in text
    assert "\n3\n" in text if not family else "tool: 3" in text
    silent = Tools(BOTH.functions, "none")
    assert "adds" not in tokenizer.decode(
        tokenizer.encode_chat(*silent.for_template(CHAT, tokenizer))
    )
    for name in THOUGHTS:
        messages, _ = BOTH.for_template([CHAT[0], CHAT[1] | {name: "why"}], tokenizer)
        assert {messages[-1][key] for key in THOUGHTS} == {"why"}


def with_own_template(tmp_path: Path, template: str) -> Tokenizer:
    directory = with_template(tmp_path / "model", "")
    (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
    return Tokenizer(directory)


def test_a_template_of_another_form_is_told_in_words(tmp_path: Path) -> None:
    tokenizer = with_own_template(tmp_path, TEMPLATES["mistral"] + "{# [ARGS] #}")
    messages, tools = BOTH.for_template(CHAT, tokenizer)
    assert tools == []
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]


DEEP = '{"x": ' * 1000 + "1" + "}" * 1000
PAST_ARGUMENTS: list[tuple[Any, Any]] = [
    ('{"x": 1}', {"x": 1}),
    ({"x": 1}, {"x": 1}),
    ("", {}),
    (None, {}),
    *((wrong, {"arguments": wrong}) for wrong in ('{"x": "1', "1", "null", 1, [1], '{"x": NaN}')),
    *((deep, {"arguments": deep}) for deep in ("[" * 1200, DEEP)),
]
ITEMS = (
    "<tool_call>{% for m in messages %}{% for c in m.tool_calls or [] %}"
    "{% for k, v in c.function.arguments|items %}{{ k }}:{{ v }}{% endfor %}"
    "{% endfor %}{% endfor %}"
)


def test_a_past_call_is_an_object_to_the_template_whatever_it_holds(tmp_path: Path) -> None:
    tokenizer = with_own_template(tmp_path, ITEMS)
    for arguments, expected in PAST_ARGUMENTS:
        call = {"id": "c", "function": {"name": "add", "arguments": arguments}}
        chat: Any = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]
        messages, tools = BOTH.for_template(chat, tokenizer)
        assert messages[1]["tool_calls"][0]["function"]["arguments"] == expected
        assert tokenizer.encode_chat(messages, tools)


STRICT = Function.read({"function": {**ADD["function"], "strict": True}, "type": "function"})
WRITTEN = {
    "tagged": ("<tool_call>\n", "arguments", "\n</tool_call>"),
    "llama": ("", "parameters", ""),
    "mistral": ("[TOOL_CALLS][", "arguments", "]"),
}
WRITTEN[""] = WRITTEN["tagged"]


def lets_through(tools: Tools, tokenizer: Tokenizer, text: str) -> bool:
    """Whether the grammar of these tools takes a whole text."""
    grammar, stop = tools.grammar(tokenizer, None), 1
    assert grammar is not None
    ids = tokenizer.encode(text)  # behind the token of a beginning
    params = SamplingParams(grammar=grammar, made=len(ids) - 1)
    try:
        rule = Grammars(tokenizer.to_json(), tokenizer.vocabulary, [stop]).rule(ids, params)
    except InvalidRequest:
        return False
    return rule is not None and rule.allows((), [stop]) == [True]


@pytest.mark.parametrize(
    ("family", "marks"), [*((name, False) for name in FORMS), *((name, True) for name in MARKS)]
)
def test_a_strict_functions_call_keeps_to_its_schema_though_the_model_decides(
    tmp_path: Path, family: str, marks: bool
) -> None:
    tokenizer = Tokenizer(with_template(tmp_path / "model", family, marks=marks))
    hidden = {token for token, special in MARKS[family].items() if special} if marks else set()
    assert set(BOTH.shown(tokenizer).values()) == hidden
    assert Tools().shown(tokenizer) == {}
    opening, key, closing = WRITTEN[family]
    call = f'{opening}{{"name": "add", "{key}": {{"x": 1, "y": 2}}}}{closing}'
    free, named = (Tools((STRICT, BOTH.functions[1]), choice) for choice in ("auto", "add"))
    for text in ("no call", "a { b <tool", call):
        assert lets_through(free, tokenizer, text)
    for wrong in (call.replace('"y": 2', '"y": 3'), " " + call.replace('"x"', '"z"')):
        assert not lets_through(free, tokenizer, wrong)
    assert lets_through(named, tokenizer, call)
    assert not lets_through(named, tokenizer, "no call")
    assert not lets_through(named, tokenizer, f"{call}\n{call}"), "one function is called once"


@pytest.mark.parametrize(
    ("tools", "shown"),
    [
        (lambda: Tools((), "required"), "required"),
        (lambda: Tools(BOTH.functions, "subtract"), "subtract"),
        (lambda: Tools(BOTH.functions * 2), "different names"),
        (lambda: Function("no name", "", {}), "no name"),
        (lambda: Function.read({"type": "web_search"}), "web_search"),
        (lambda: Function.read({"type": "custom", "name": "f"}), "type custom"),
        (lambda: Function.read({"type": "custom", "custom": {"name": "f"}}), "type custom"),
    ],
)
def test_tools_that_cannot_be_called_are_refused(tools: Any, shown: str) -> None:
    assert_refused(tools, [shown])
