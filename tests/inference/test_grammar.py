"""Grammars of a tokenizer: what may follow, where a text ends, and schemas that mean no good."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from datetime import date
from functools import partial
from itertools import count
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from pydantic import BaseModel, Field

from inference.errors import Busy, InvalidRequest
from inference.sampling import MAX_GRAMMAR, Grammar, GrammarKind, SamplingParams
from inference.text.grammar import SECONDS_AT_ONCE, Grammars
from inference.text.grammar_check import CHECK_SECONDS, LIMITED, check
from inference.token_rule import TokenRule
from inference.tree.token_tree import TokenTree
from tests.support.pairs import STOP, VOCABULARY, tokenizer
from tests.support.refusals import assert_refused

RULES = tokenizer()
GRAMMARS = Grammars(RULES.to_str(), VOCABULARY, [STOP])
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["name", "n"],
    "additionalProperties": False,
}


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
    rule = rule_of(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))
    assert RULES.decode(rule.forced([])) == '{"name": "'
    assert follow(rule, ids('{"name": "ab')) >= {"a", "ab", '"', "\\"}
    assert RULES.decode(rule.forced(ids('{"name": "ab"'))) == ', "n": '
    assert follow(rule, ids('{"name": "ab", "n": 1')) == {*"0123456789", "}"}
    assert follow(rule, ids('{"name": "ab", "n": 12}')) == {""}


def test_a_schema_may_ask_for_other_white_space() -> None:
    loose = SCHEMA | {"x-guidance": {"whitespace_flexible": True}}
    rule = rule_of(GrammarKind.JSON_SCHEMA, json.dumps(loose))
    assert follow(rule, ids("{")) >= {" ", '"'}


def test_each_kind_of_grammar_says_what_may_follow() -> None:
    assert follow(rule_of(GrammarKind.REGEX, "[0-4]+x"), ids("12")) == {*"01234x"}
    assert follow(rule_of(GrammarKind.EBNF, 'start: "a" start "z" | "."'), ids("aa.z")) == {"z"}
    choices = rule_of(GrammarKind.CHOICE, json.dumps(["ab", 'a"\n', "bé"]))
    assert follow(choices, []) == {"a", "b", "ab"}
    assert follow(choices, ids('a"')) == {"\n"}
    assert follow(choices, ids('a"\n')) == {""}


def test_where_a_text_may_end_or_go_on_both_are_allowed() -> None:
    assert follow(rule_of(GrammarKind.REGEX, "x+"), ids("xx")) == {"x", ""}


def test_behind_a_complete_text_stop_ids_alone_may_follow() -> None:
    grammars = Grammars(RULES.to_str(), VOCABULARY, [STOP, 7, VOCABULARY + 3])
    rule = rule_of(GrammarKind.REGEX, "xx?", grammars)
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


def test_masks_of_a_walked_tree_are_those_of_each_path_alone() -> None:
    """Whatever was rolled back before."""
    generator, grammar = np.random.default_rng(1), json.dumps({"type": "object"})
    rule = rule_of(GrammarKind.JSON_SCHEMA, grammar)
    for _ in range(20):
        tokens, parents = [5], [-1]
        for _ in range(30):
            parent = int(generator.integers(len(tokens)))
            path, at = list[int](), parent
            while parents[at] >= 0:
                path.insert(0, tokens[at])
                at = parents[at]
            may = np.flatnonzero(rule.allows(path, range(VOCABULARY)))
            token = int(generator.choice(may) if generator.random() < 0.8 else 33)
            if (parent, token) not in zip(parents, tokens, strict=True):
                tokens.append(token)
                parents.append(parent)
        tree = TokenTree(np.array(tokens), np.array(parents))
        found = rule.adjust(tree, range(len(tree))).allowed
        assert found is not None
        for node, row in enumerate(found):
            alone = rule_of(GrammarKind.JSON_SCHEMA, grammar)
            alone.commit(tree.tokens[np.flatnonzero(tree.mask[node])[1:]].tolist())
            try:
                own = alone.adjust(TokenTree.chain([5]), [0]).allowed
            except InvalidRequest:
                assert (row == -1).all()
            else:
                assert own is not None
                assert row.tolist() == own[0].tolist()


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=1, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    name: Annotated[str, Field(pattern="^[A-Z][a-z]+$", max_length=9)]


class Home(BaseModel, extra="forbid"):
    """A type with references, unions, formats and bounds."""

    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    others: Annotated[list[Cat], Field(min_length=1, max_length=2)]
    size: Literal["small", 3, None] = None
    since: date
    at: tuple[float, Annotated[float, Field(gt=0, multiple_of=0.5)]]
    rooms: dict[str, int]
    inner: Home | None = None


HOME: dict[str, Any] = {
    "pet": {"kind": "dog", "name": "Rex"},
    "others": [{"kind": "cat", "lives": 9}],
    "size": 3,
    "since": "2026-01-31",
    "at": [-1.5, 2.5],
    "rooms": {"attic": 1},
    "inner": None,
}


def passes(text: str) -> bool:
    """Whether the schema of a home lets a whole text through."""
    rule = rule_of(GrammarKind.JSON_SCHEMA, json.dumps(Home.model_json_schema()))
    rule.commit(ids(text))
    try:
        return rule.allows([], [STOP]) == [True]
    except InvalidRequest:
        return False


def test_a_schema_of_pydantic_lets_its_own_objects_through_and_no_others() -> None:
    assert passes(json.dumps(HOME | {"inner": HOME}))
    for wrong in ({"more": 1}, {"pet": {"kind": "dog", "name": "rex"}}, {"at": [0, 0.7]}):
        assert not passes(json.dumps(HOME | wrong))


def go_on(rule: TokenRule, tokens: int) -> None:
    """Commit so many tokens, each the last one that is allowed."""
    for _ in range(tokens):
        rule.commit([int(np.flatnonzero(rule.allows([], range(VOCABULARY)))[-1])])


ENDLESS = Grammar(GrammarKind.JSON_SCHEMA, '{"type": "integer", "multipleOf": 999983}')
"""It takes longer than CHECK_SECONDS."""

HOSTILE = {
    "nested arrays": '{"type":"array","items":' * 1500 + "{}" + "}" * 1500,
    "brackets": "[" * 60_000,
    "a product of choices": json.dumps(
        {
            "allOf": [
                {"anyOf": [{"properties": {f"a{i}{j}": {"type": "string"}}} for j in range(6)]}
                for i in range(20)
            ]
        }
    ),
    "itself": '{"$ref": "#"}',
    "many patterns": json.dumps(
        {"allOf": [{"type": "string", "pattern": f"a.{{0,{i}}}b"} for i in range(30)]}
    ),
    "3000 properties": json.dumps(
        {"type": "object", "properties": {f"p{i}": {} for i in range(3000)}}
    ),
}
REGEXES = {
    "counted a million times": "a{1000000}",
    "looks ahead": "(?=a)b",
    "deep": "(" * 15_000 + "a" + ")" * 15_000,
    "a thousand times or not": "(a?){1000}a{1000}",
}
LARK = {
    "nothing but itself": "start: start start",
    "2000 rules that may be empty": "start: r0\n"
    + "".join(f"r{i}: r{i + 1}? r{i + 1}?\n" for i in range(2000))
    + 'r2000: "a"?\n',
    "deep": "start: " + "(" * 20_000 + '"a"' + ")" * 20_000,
    "intersections": "start: A\nA: /(.*a.{15}x)/ & /(.*b.{16}y)/ & ~/(.*c.{14})/\n",
}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *((GrammarKind.JSON_SCHEMA, text) for text in HOSTILE.values()),
        *((GrammarKind.REGEX, text) for text in REGEXES.values()),
        *((GrammarKind.EBNF, text) for text in LARK.values()),
    ],
    ids=[*HOSTILE, *REGEXES, *LARK],
)
def test_a_hostile_grammar_gets_one_line_in_bounded_time(kind: GrammarKind, text: str) -> None:
    """At once, or when the text comes to where it takes too long."""
    began = time.thread_time()
    line = assert_refused(lambda: go_on(rule_of(kind, text), 3), [], InvalidRequest)
    assert len(line) < 300
    assert time.thread_time() - began < 2 * CHECK_SECONDS + 2 * SECONDS_AT_ONCE


@pytest.mark.parametrize(
    ("kind", "text", "shown"),
    [
        (GrammarKind.JSON_SCHEMA, "{", ["schema cannot be read"]),
        (GrammarKind.JSON_SCHEMA, '{"type": "foo"}', ["Invalid type"]),
        (GrammarKind.JSON_SCHEMA, '{"not": {}}', ["Unimplemented", "not"]),
        (GrammarKind.JSON_SCHEMA, '{"uniqueItems": true}', ["Unimplemented", "uniqueItems"]),
        (GrammarKind.JSON_SCHEMA, '{"type": "string", "format": "path"}', ["format", "path"]),
        (GrammarKind.JSON_SCHEMA, '{"pattern": "^(?!x)a"}', ["pattern ^(?!x)a: look-around"]),
        (GrammarKind.REGEX, "[0-9", ["pattern [0-9: unclosed"]),
        (GrammarKind.EBNF, "start: y", ["unknown name"]),
        (GrammarKind.CHOICE, '["a"', ["JSON list of strings"]),
        (GrammarKind.CHOICE, "[]", ["not empty"]),
        (GrammarKind.CHOICE, "5", ["JSON list of strings"]),
        (GrammarKind.CHOICE, '{"a": "b"}', ["JSON list of strings"]),
        (GrammarKind.CHOICE, r'["\ud800"]', ["JSON list of strings", "surrogate"]),
        (GrammarKind.CHOICE, '["a", ""]', ["not empty"]),
        (GrammarKind.CHOICE, "[" * 50_000, ["JSON list of strings"]),
    ],
)
def test_a_grammar_that_is_none_is_refused(kind: GrammarKind, text: str, shown: list[str]) -> None:
    assert_refused(lambda: rule_of(kind, text), shown, InvalidRequest)


def test_a_grammar_too_long_or_no_text_is_refused() -> None:
    for text, shown in (("", "got 0"), ("x" * (MAX_GRAMMAR + 1), "65537"), ("\ud800", "Unicode")):
        assert_refused(partial(Grammar, GrammarKind.REGEX, text), [shown], InvalidRequest)


def test_a_model_without_an_end_of_text_takes_no_grammar() -> None:
    grammars = Grammars(RULES.to_str(), VOCABULARY, [])
    assert_refused(
        lambda: rule_of(GrammarKind.REGEX, "x", grammars), ["ends a text"], InvalidRequest
    )


def test_a_grammar_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = list[str]()

    def watched(text: str) -> str | None:
        checked.append(text)
        return check(text)

    monkeypatch.setattr("inference.text.grammar_check.check", watched)
    grammars = Grammars(RULES.to_str(), VOCABULARY, [STOP])
    for _ in range(3):
        rule_of(GrammarKind.REGEX, "ab*", grammars)
        with pytest.raises(InvalidRequest):
            rule_of(GrammarKind.REGEX, "ab*(", grammars)
    assert len(checked) == 2


@pytest.mark.skipif(not LIMITED, reason="elsewhere time alone bounds a check")
def test_a_busy_machine_is_not_held_against_a_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    grammars = Grammars(RULES.to_str(), VOCABULARY, [STOP])
    with monkeypatch.context() as patch:
        patch.setattr("inference.text.grammar_check.MAX_WAIT", 0.05)
        assert_refused(lambda: rule_of(ENDLESS.kind, ENDLESS.text, grammars), ["busy"], Busy)
    assert not grammars.has_checked(ENDLESS)
    assert follow(rule_of(GrammarKind.REGEX, "ab*", grammars), []) == {"a", "ab"}


def test_one_process_checks_grammar_after_grammar_and_is_replaced_when_it_was_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, begin = list[Any](), subprocess.Popen

    def watched(*command: Any, **options: Any) -> Any:
        begun.append(begin(*command, **options))
        return begun[-1]

    monkeypatch.setattr("inference.text.grammar_check.subprocess.Popen", watched)
    grammars = Grammars(RULES.to_str(), VOCABULARY, [STOP])

    def check(*texts: str) -> None:
        for text in texts:
            grammars.check(Grammar(GrammarKind.REGEX, text))

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
    assert_refused(lambda: rule_of(GrammarKind.JSON_SCHEMA, text), [], InvalidRequest)
    twice = text[:-1] + ', "x-guidance": {}}'
    for one in (text, twice, text.replace(option[0], f"\\u{ord(option[0]):04x}")):
        lark = f'start: "%json {{" | %json {one}'
        assert_refused(partial(rule_of, GrammarKind.EBNF, lark), [], InvalidRequest)


def test_a_text_whose_grammar_works_too_long_ends_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a clock of the processor: a step takes 20 ms of one text, and none of the other."""
    slow, quick = (rule_of(GrammarKind.REGEX, "x*") for _ in range(2))
    with monkeypatch.context() as patch:
        calls = count()
        patch.setattr(time, "thread_time", lambda: 0.02 * next(calls))
        assert_refused(lambda: go_on(slow, 100), ["takes too long"], InvalidRequest)
    assert_refused(lambda: go_on(slow, 1), ["takes too long"], InvalidRequest)
    go_on(quick, 100)


def test_threads_make_rules_of_one_grammar_at_the_same_time() -> None:
    grammars, found = Grammars(RULES.to_str(), VOCABULARY, [STOP]), list[set[str]]()

    def make() -> None:
        found.append(follow(rule_of(GrammarKind.REGEX, "[ab]c", grammars), ids("a")))

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [{"c"}] * 4
