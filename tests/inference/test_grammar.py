"""Grammars of a tokenizer: what may follow, where a text ends, and schemas that mean no good."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pytest

from inference.errors import Busy, InvalidRequest
from inference.sampling import MAX_GRAMMAR, Grammar, GrammarKind, SamplingParams
from inference.text.grammar import SECONDS_AT_ONCE, Grammars
from inference.text.grammar_check import CHECK_SECONDS, LIMITED, check
from inference.token_rule import TokenRule
from inference.tree.token_tree import TokenTree
from tests.support.pairs import STOP, VOCABULARY, tokenizer
from tests.support.refusals import assert_refused

SCHEMA, REGEX = GrammarKind.JSON_SCHEMA, GrammarKind.REGEX
EBNF, CHOICE = GrammarKind.EBNF, GrammarKind.CHOICE
RULES = tokenizer()


def fresh() -> Grammars:
    return Grammars(RULES.to_str(), VOCABULARY, [STOP])


GRAMMARS = fresh()


def rule_of(kind: GrammarKind, text: str, grammars: Grammars = GRAMMARS) -> TokenRule:
    rule = grammars.rule([5], SamplingParams(grammar=Grammar(kind, text)))
    assert rule is not None
    return rule


def follow(rule: TokenRule, path: list[int]) -> set[str]:
    """Texts of the tokens that may follow a path; the end is empty."""
    every = range(VOCABULARY + 40)
    may = [token for token, allowed in zip(every, rule.allows(path, every), strict=True) if allowed]
    assert max(may) < VOCABULARY
    return {RULES.decode([token]) for token in may}


def ids(text: str) -> list[int]:
    return list(RULES.encode(text).ids)


def test_json_of_a_schema_is_written_in_one_line_and_then_ends() -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "n": {"type": "integer"}},
        "required": ["name", "n"],
        "additionalProperties": False,
    }
    rule = rule_of(SCHEMA, json.dumps(schema))
    assert RULES.decode(rule.forced([])) == '{"name": "'
    assert follow(rule, ids('{"name": "ab')) >= {"a", "ab", '"', "\\"}
    assert RULES.decode(rule.forced(ids('{"name": "ab"'))) == ', "n": '
    assert follow(rule, ids('{"name": "ab", "n": 1')) == {*"0123456789", "}"}
    assert follow(rule, ids('{"name": "ab", "n": 12}')) == {""}
    loose = schema | {"x-guidance": {"whitespace_flexible": True}}
    assert follow(rule_of(SCHEMA, json.dumps(loose)), ids("{")) >= {" ", '"'}


def test_each_kind_of_grammar_says_what_may_follow() -> None:
    assert follow(rule_of(REGEX, "[0-4]+x"), ids("12")) == {*"01234x"}
    assert follow(rule_of(REGEX, "x+"), ids("xx")) == {"x", ""}
    assert follow(rule_of(EBNF, 'start: "a" start "z" | "."'), ids("aa.z")) == {"z"}
    choices = rule_of(CHOICE, json.dumps(["ab", 'a"\n', "bé"]))
    assert follow(choices, []) == {"a", "b", "ab"}
    assert follow(choices, ids('a"')) == {"\n"}
    assert follow(choices, ids('a"\n')) == {""}


def test_behind_a_complete_text_stop_ids_alone_may_follow() -> None:
    grammars = Grammars(RULES.to_str(), VOCABULARY, [STOP, 7, VOCABULARY + 3])
    rule = rule_of(REGEX, "xx?", grammars)
    for path in (ids("xx"), [*ids("x"), 7], [*ids("x"), STOP, 7, STOP]):
        allowed = rule.allows(path, range(VOCABULARY))
        assert np.flatnonzero(allowed).tolist() == [STOP, 7]
    assert rule.allows(ids("x"), [STOP, 7]) == [True, True]
    assert rule.allows([STOP], [STOP, 8]) == [True, True]  # excluded: everything passes
    tree = TokenTree(
        np.array([5, *ids("x"), 7, STOP, *ids("x"), STOP]), np.array([-1, 0, 1, 2, 1, 4])
    )
    masks = rule.adjust(tree, range(6)).allowed
    assert masks is not None
    assert masks[2:, 0].tolist() == [1 << STOP | 1 << 7] * 4


def go_on(rule: TokenRule, tokens: int) -> None:
    """Commit so many tokens, each the last one that is allowed."""
    for _ in range(tokens):
        rule.commit([int(np.flatnonzero(rule.allows([], range(VOCABULARY)))[-1])])


ENDLESS = Grammar(SCHEMA, '{"type": "integer", "multipleOf": 999983}')
"""It takes longer than CHECK_SECONDS."""

MANY = [{"anyOf": [{"required": [f"a{i}{j}"]} for j in range(6)]} for i in range(20)]
PATTERNS = [{"type": "string", "pattern": f"a.{{0,{i}}}b"} for i in range(30)]
OPTIONAL = "".join(f"r{i}: r{i + 1}? r{i + 1}?\n" for i in range(2000))
HOSTILE = {
    "nested arrays": (SCHEMA, '{"type":"array","items":' * 1500 + "{}" + "}" * 1500),
    "a product of choices": (SCHEMA, json.dumps({"allOf": MANY})),
    "itself": (SCHEMA, '{"$ref": "#"}'),
    "many patterns": (SCHEMA, json.dumps({"allOf": PATTERNS})),
    "3000 properties": (SCHEMA, json.dumps({"properties": {f"p{i}": {} for i in range(3000)}})),
    "counted a million times": (REGEX, "a{1000000}"),
    "deep": (REGEX, "(" * 15_000 + "a" + ")" * 15_000),
    "a thousand times or not": (REGEX, "(a?){1000}a{1000}"),
    "nothing but itself": (EBNF, "start: start start"),
    "2000 optional rules": (EBNF, f'start: r0\n{OPTIONAL}r2000: "a"?\n'),
    "deep rules": (EBNF, "start: " + "(" * 20_000 + '"a"' + ")" * 20_000),
    "intersections": (EBNF, "start: A\nA: /(.*a.{15}x)/ & /(.*b.{16}y)/ & ~/(.*c.{14})/\n"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_gets_one_line_in_bounded_time(name: str) -> None:
    """At once, or when the text comes to where it takes too long."""
    began = time.thread_time()
    line = assert_refused(lambda: go_on(rule_of(*HOSTILE[name]), 3), [], InvalidRequest)
    assert len(line) < 300
    assert time.thread_time() - began < 2 * CHECK_SECONDS + 2 * SECONDS_AT_ONCE


@pytest.mark.parametrize(
    ("kind", "text", "shown"),
    [
        (SCHEMA, "{", ["schema cannot be read"]),
        (SCHEMA, '{"type": "foo"}', ["Invalid type"]),
        (SCHEMA, '{"not": {}}', ["Unimplemented", "not"]),
        (SCHEMA, '{"uniqueItems": true}', ["Unimplemented", "uniqueItems"]),
        (SCHEMA, '{"type": "string", "format": "path"}', ["format", "path"]),
        (SCHEMA, '{"pattern": "^(?!x)a"}', ["pattern ^(?!x)a: look-around"]),
        (REGEX, "[0-9", ["pattern [0-9: unclosed"]),
        (REGEX, "", ["got 0"]),
        (REGEX, "x" * (MAX_GRAMMAR + 1), ["65537"]),
        (REGEX, "\ud800", ["Unicode"]),
        (EBNF, "start: y", ["unknown name"]),
        (CHOICE, '["a"', ["JSON list of strings"]),
        (CHOICE, "[]", ["not empty"]),
        (CHOICE, "5", ["JSON list of strings"]),
        (CHOICE, '{"a": "b"}', ["JSON list of strings"]),
        (CHOICE, r'["\ud800"]', ["JSON list of strings", "surrogate"]),
        (CHOICE, '["a", ""]', ["not empty"]),
        (CHOICE, "[" * 50_000, ["JSON list of strings"]),
    ],
)
def test_a_grammar_that_is_none_is_refused(kind: GrammarKind, text: str, shown: list[str]) -> None:
    assert_refused(lambda: rule_of(kind, text), shown, InvalidRequest)


def test_a_grammar_is_checked_once_and_threads_may_make_its_rules_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked, found = list[str](), list[set[str]]()

    def watched(text: str) -> str | None:
        checked.append(text)
        return check(text)

    monkeypatch.setattr("inference.text.grammar_check.check", watched)
    grammars = fresh()

    def make() -> None:
        found.append(follow(rule_of(REGEX, "[ab]c", grammars), ids("a")))
        with pytest.raises(InvalidRequest):
            rule_of(REGEX, "ab*(", grammars)

    make()
    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(checked) == 2
    assert found == [{"c"}] * 5
    unending = Grammars(RULES.to_str(), VOCABULARY, [])
    assert_refused(lambda: rule_of(REGEX, "x", unending), ["ends a text"], InvalidRequest)


@pytest.mark.skipif(not LIMITED, reason="elsewhere time alone bounds a check")
def test_a_busy_machine_is_not_held_against_a_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    grammars = fresh()
    with monkeypatch.context() as patch:
        patch.setattr("inference.text.grammar_check.MAX_WAIT", 0.05)
        assert_refused(lambda: rule_of(ENDLESS.kind, ENDLESS.text, grammars), ["busy"], Busy)
    assert not grammars.has_checked(ENDLESS)
    assert follow(rule_of(REGEX, "ab*", grammars), []) == {"a", "ab"}


def test_one_process_checks_grammar_after_grammar_and_is_replaced_when_it_was_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, begin = list[Any](), subprocess.Popen

    def watched(*command: Any, **options: Any) -> Any:
        begun.append(begin(*command, **options))
        return begun[-1]

    monkeypatch.setattr("inference.text.grammar_check.subprocess.Popen", watched)
    grammars = fresh()

    def check(*texts: str) -> None:
        for text in texts:
            grammars.check(Grammar(REGEX, text))

    check("ax*")
    begun.clear()
    check("ay*", "az*")
    assert_refused(lambda: check("("), ["pattern"], InvalidRequest)
    check("aw*")
    assert begun == []
    shown = [f"more than {CHECK_SECONDS} s"]
    assert_refused(lambda: grammars.check(ENDLESS), shown, InvalidRequest)
    check("au*", "av*")
    (process,) = begun
    process.kill()
    process.wait()
    check("at*")
    assert len(begun) == 2


LENIENT = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}


@pytest.mark.parametrize("option", ["lenient", "coerce_one_of"])
@pytest.mark.parametrize("schema", [LENIENT, {"not": {}}, {"oneOf": [{}, {"type": "integer"}]}])
def test_a_schema_cannot_switch_enforcement_off(schema: dict[str, Any], option: str) -> None:
    text = json.dumps(schema | {"x-guidance": {option: True, "whitespace_flexible": True}})
    assert_refused(lambda: rule_of(SCHEMA, text), [], InvalidRequest)
    twice = text[:-1] + ', "x-guidance": {}}'
    for one in (text, twice, text.replace(option[0], f"\\u{ord(option[0]):04x}")):
        lark = f'start: "%json {{" | %json {one}'
        assert_refused(partial(rule_of, EBNF, lark), [], InvalidRequest)


def test_a_text_whose_grammar_works_too_long_ends_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a clock of the processor: a step takes 20 ms of one text, and none of the other."""
    slow, quick = (rule_of(REGEX, "x*") for _ in range(2))
    with monkeypatch.context() as patch:
        calls = count()
        patch.setattr(time, "thread_time", lambda: 0.02 * next(calls))
        assert_refused(lambda: go_on(slow, 100), ["takes too long"], InvalidRequest)
    assert_refused(lambda: go_on(slow, 1), ["takes too long"], InvalidRequest)
    go_on(quick, 100)
