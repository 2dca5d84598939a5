"""Functions that a text may call: how the model is told of them, and how it writes its calls."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from inference.errors import InvalidRequest
from inference.sampling import Grammar, GrammarKind
from inference.text import Tokenizer
from outrider.text.call_reader import CallForm, CallReader

Message: TypeAlias = Mapping[str, Any]
"""A message of a chat: its `role` and `content`. One of the assistant may have `tool_calls`; one
of role tool has the result of the call `tool_call_id`.
"""

MOST_TOOLS = 128
"""Functions of one text."""

NAME = r"[a-zA-Z0-9_-]{1,64}"
"""Names that a function may have."""

TAGGED = CallForm("<tool_call>", "<tool_call>", "</tool_call>")
LLAMA = CallForm("ipython", "<|python_tag|>", key="parameters", bare=True)
MISTRAL = CallForm("[TOOL_CALLS]", "[TOOL_CALLS]", listed=True)

_OTHER_FORMS = ("<function=", "[ARGS]")
"""Marks of templates whose calls are not read: they are used as if they knew no functions."""

_PLAIN = {"type", "properties", "required", "title", "description", "$defs", "$schema"}
"""Keywords of a schema that takes no properties but its own, unless it says that it does."""

_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON as chat templates write it, which is what a model learned."""


@dataclass(frozen=True)
class Function:
    """A function that a text may call. Raises InvalidRequest for a name that is not allowed.

    parameters: JSON schema of its arguments
    strict: whether its arguments keep to the schema although the model calls of its own accord
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    strict: bool = False

    def __post_init__(self) -> None:
        if not re.fullmatch(NAME, self.name):
            raise InvalidRequest(f"a function's name is {NAME}: got {self.name[:80]!r}")

    @classmethod
    def read(cls, tool: Mapping[str, Any]) -> Function:
        """A function as OpenAI's interface describes it."""
        given = tool.get("function") if tool.get("type") == "function" else None
        if not isinstance(given, Mapping):
            raise InvalidRequest('a tool is {"type": "function", "function": {"name": ...}}')
        parameters = given.get("parameters") or {"type": "object", "properties": {}}
        words = (str(given.get("name", "")), str(given.get("description") or ""))
        return cls(*words, parameters, bool(given.get("strict")))

    @property
    def described(self) -> dict[str, Any]:
        """The function as chat templates take it."""
        told = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": told}


@dataclass(frozen=True)
class Tools:
    """Functions that a text may call, and how. Raises InvalidRequest for a choice without its
    function.

    choice: auto, none, required, or the name of the function that is called
    several: whether a text may have more than one call
    """

    functions: tuple[Function, ...] = ()
    choice: str = "auto"
    several: bool = True

    def __post_init__(self) -> None:
        names = [function.name for function in self.functions]
        if len(names) > MOST_TOOLS or len(set(names)) < len(names):
            raise InvalidRequest(f"up to {MOST_TOOLS} functions with different names are allowed")
        if self.choice not in ("auto", "none", *(names and ["required"]), *names):
            raise InvalidRequest(f"tool_choice {self.choice} names no function: {names} are there")

    @property
    def callable(self) -> tuple[Function, ...]:
        """The functions that the choice leaves."""
        if self.choice in ("auto", "required"):
            return self.functions
        return tuple(one for one in self.functions if one.name == self.choice)

    def reader(self, tokenizer: Tokenizer) -> CallReader | None:
        """A reader of the calls in a text; None where no function may be called."""
        names = frozenset(one.name for one in self.callable)
        several = self.several and self.choice in ("auto", "required")
        form = call_form(tokenizer)
        return CallReader(form, names, several=several) if names else None

    def shown(self, tokenizer: Tokenizer) -> Mapping[int, str]:
        """Special tokens that are shown as text, since they announce calls."""
        mark = call_form(tokenizer).opening
        token = tokenizer.id_of(mark) if self.callable else None
        return {} if token is None or tokenizer.decode([token]) else {token: mark}

    def grammar(self, tokenizer: Tokenizer, answer: Grammar | None) -> Grammar | None:
        """The grammar that a text is held to; `answer` where no function may be called.

        Calls are held to their schemas where the choice demands one, where the answer has a form,
        and where a function is strict.
        """
        free = self.choice == "auto" and answer is None
        if not self.callable or (free and not any(one.strict for one in self.functions)):
            return answer
        form = call_form(tokenizer)
        opening, closing = (_mark(tokenizer, mark) for mark in (form.opening, form.closing))
        rules = [_calls(form, opening, closing, self.several and self.choice != "none")]
        if not free:
            rules.append(f"begin: {'' if form.bare else opening}")
            rules.append("start: calls" if self.choice != "auto" else "start: calls | answer")
        elif form.bare:
            rules += ["begin:", r"start: calls | /([^{](.|\n)*)?/"]
        else:
            lazy = "[lazy]" if opening.startswith('"') else ""
            rules += [r"TEXT: /(.|\n)*/", f"begin{lazy}: TEXT {opening}", "start: calls | TEXT"]
        for number, function in enumerate(self.callable):
            schema = function.parameters if not free or function.strict else {"type": "object"}
            head = json.dumps(f'{{"name": "{function.name}", "{form.key}": ')
            rules.append(f'call_{number}: {head} %json {_compact(schema)} "}}"')
        rules.append("call: " + " | ".join(f"call_{one}" for one in range(len(self.callable))))
        if answer is not None and self.choice == "auto":
            if answer.kind is not GrammarKind.JSON_SCHEMA:
                raise InvalidRequest("beside tools the form of an answer is a JSON schema")
            rules.append(f"answer: %json {answer.text}")
        return Grammar(GrammarKind.EBNF, "\n".join(rules))

    def told(self, messages: Sequence[Message], tokenizer: Tokenizer) -> Chat:
        """The messages and tools as the model's chat template takes them. Where it knows no
        functions, they are spelled out in the messages.
        """
        described = [] if self.choice == "none" else [one.described for one in self.functions]
        if _knows_tools(tokenizer.template):
            return list(messages), described
        return list(_spelled_out(messages, described)), []


NO_TOOLS = Tools()

Chat: TypeAlias = "tuple[list[Message], list[dict[str, Any]]]"
"""Messages, and tools for the chat template."""


def call_form(tokenizer: Tokenizer) -> CallForm:
    """The form of calls that the chat template has; TAGGED for one that knows no functions."""
    template = tokenizer.template
    known = [form for form in (TAGGED, LLAMA, MISTRAL) if form.mark in template]
    return known[0] if known and _knows_tools(template) else TAGGED


def _knows_tools(template: str) -> bool:
    marks = [form.mark for form in (TAGGED, LLAMA, MISTRAL)]
    return any(mark in template for mark in marks) and not any(
        mark in template for mark in _OTHER_FORMS
    )


def _mark(tokenizer: Tokenizer, text: str) -> str:
    """A mark in a grammar: the token that stands for it, else its letters."""
    token = tokenizer.id_of(text) if text else None
    return json.dumps(text) if token is None else f"<[{token}]>"


def _compact(schema: Mapping[str, Any]) -> str:
    closed = "properties" in schema and schema.keys() <= _PLAIN
    more = {"additionalProperties": False} if closed else {}
    return json.dumps({**schema, **more, "x-guidance": _COMPACT})


def _calls(form: CallForm, opening: str, closing: str, several: bool) -> str:
    """The rule of one or several calls. `begin` is the way to the first one's opening."""
    if form.bare:
        return "calls: begin call"
    if form.listed:
        return 'calls: begin "[" call ' + ('(", " call)* ' if several else "") + '"]"'
    more = rf'("\n" {opening} "\n" call "\n" {closing})*' if several else ""
    return rf'calls: begin "\n" call "\n" {closing} {more}'


def _spelled_out(messages: Sequence[Message], tools: Iterable[Any]) -> Iterable[Message]:
    """Messages for a template that knows no functions: system, user and assistant only."""
    lines = [json.dumps(tool, ensure_ascii=False) for tool in tools]
    first = messages[0] if messages else {}
    system = [first["content"]] if first.get("role") == "system" else []
    if lines:
        call = f'{TAGGED.opening}\n{{"name": NAME, "arguments": OBJECT}}\n{TAGGED.closing}'
        listed = "\n".join(["These functions can be called:", *lines])
        system += [f"{listed}\nTo call one, write:\n{call}"]
    if system:
        yield {"role": "system", "content": "\n\n".join(system)}
    results = list[str]()
    for message in messages[1 if first.get("role") == "system" else 0 :]:
        if message["role"] == "tool":
            results.append(f"<tool_response>\n{message['content']}\n</tool_response>")
            continue
        if results:
            yield {"role": "user", "content": "\n".join(results)}
            results = []
        calls = [_written(call["function"]) for call in message.get("tool_calls", ())]
        said = [message["content"]] if message["content"] else []
        yield {"role": message["role"], "content": "\n".join([*said, *calls])}
    if results:
        yield {"role": "user", "content": "\n".join(results)}


def _written(call: Mapping[str, Any]) -> str:
    value = {"name": call["name"], "arguments": call["arguments"]}
    written = json.dumps(value, ensure_ascii=False)
    return f"{TAGGED.opening}\n{written}\n{TAGGED.closing}"
