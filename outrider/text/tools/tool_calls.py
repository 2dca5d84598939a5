"""Functions that a text may call: how the prompt lists them, and how the model writes calls."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from inference.errors import InvalidRequest
from inference.sampling import Grammar, GrammarKind
from inference.text.tokenizer import Tokenizer
from outrider.text.tools.call_reader import CallForm, CallReader
from outrider.text.tools.json_values import MAX_DEPTH, nests_deeply, read_object
from outrider.text.tools.schemas import needed

Message: TypeAlias = Mapping[str, Any]
"""A message of a chat: its `role` and `content`. One of the assistant may have `tool_calls`, and
one of THOUGHTS; one of role tool has the result of the call `tool_call_id`.
"""

MAX_TOOLS = 128
"""Maximum functions of a text."""

NAME = r"[a-zA-Z0-9_-]{1,64}"
"""Valid names of functions."""

TAGGED = CallForm("<tool_call>", "<tool_call>", "</tool_call>")
LLAMA = CallForm("ipython", "<|python_tag|>", key="parameters", bare=True)
MISTRAL = CallForm("[TOOL_CALLS]", "[TOOL_CALLS]", listed=True)

THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""Names of the assistant's reasoning in messages and chat templates."""

_OTHER_FORMS = ("<function=", "[ARGS]")
"""Marks of templates whose format of calls is unknown: they are used as if without functions."""

_PLAIN = {"type", "properties", "required", "title", "description", "$defs", "$schema"}
"""Keywords of a schema that allows no other properties unless it says so."""

_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON as chat templates write it, which is what a model learned."""


_NO_ARGUMENTS = {"type": "object", "properties": {}}


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
        """A function as an interface describes it: OpenAI's chat, its /v1/responses, Anthropic's.

        Raises InvalidRequest for tools of another kind.
        """
        kind, function = tool.get("type") or "custom", tool.get("function", tool)
        supported = kind == "function" or (kind == "custom" and "input_schema" in tool)
        if not supported or not isinstance(function, Mapping):
            raise InvalidRequest(f"tools of type {kind} are not served: functions are")
        parameters = function.get("parameters") or function.get("input_schema") or _NO_ARGUMENTS
        if not isinstance(parameters, Mapping):
            raise InvalidRequest(
                f"a function's parameters are a JSON schema: got {parameters!r:.80}"
            )
        words = (str(function.get("name", "")), str(function.get("description") or ""))
        return cls(*words, parameters, bool(function.get("strict")))

    @property
    def described(self) -> dict[str, Any]:
        """The function as chat templates take it."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": self.parameters,
            },
        }


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
        if len(names) > MAX_TOOLS or len(set(names)) < len(names):
            raise InvalidRequest(f"up to {MAX_TOOLS} functions with different names are allowed")
        if self.choice not in ("auto", "none", *(names and ["required"]), *names):
            raise InvalidRequest(f"tool_choice {self.choice} names no function: {names} are there")

    @property
    def callable(self) -> tuple[Function, ...]:
        """The functions that the choice allows."""
        if self.choice in ("auto", "required"):
            return self.functions
        return tuple(function for function in self.functions if function.name == self.choice)

    @property
    def _several(self) -> bool:
        return self.several and self.choice in ("auto", "required")

    def reader(self, tokenizer: Tokenizer) -> CallReader | None:
        """A reader of the calls in a text; None where no function may be called."""
        if not self.callable:
            return None
        names = frozenset(function.name for function in self.callable)
        form = call_form(tokenizer.template) or TAGGED
        return CallReader(form, names, several=self._several)

    def shown(self, tokenizer: Tokenizer) -> Mapping[int, str]:
        """Special tokens that are shown as text, since they announce calls."""
        if not self.callable:
            return {}
        mark = (call_form(tokenizer.template) or TAGGED).opening
        token = tokenizer.id_of(mark)
        return {} if token is None or tokenizer.decode([token]) else {token: mark}

    def grammar(self, tokenizer: Tokenizer, answer: Grammar | None) -> Grammar | None:
        """The grammar of a text; `answer` if no function may be called.

        Calls are held to their schemas where the choice demands one, where the answer has a form,
        and where a function is strict.
        """
        free = self.choice == "auto" and answer is None
        if not self.callable or (free and not any(function.strict for function in self.functions)):
            return answer
        form = call_form(tokenizer.template) or TAGGED
        opening, closing = (_mark(tokenizer, mark) for mark in (form.opening, form.closing))
        rules = [_calls(form, opening, closing, self._several)]
        if not free:
            rules.append(f"begin: {'' if form.bare else opening}")
            rules.append("start: calls" if self.choice != "auto" else "start: calls | answer")
        elif form.bare:
            rules += ["begin:", r"start: calls | /(\s*[^{\s](.|\n)*)?/"]
        else:
            lazy = "[lazy]" if opening.startswith('"') else ""
            rules += [r"TEXT: /(.|\n)*/", f"begin{lazy}: TEXT {opening}", "start: calls | TEXT"]
        for number, function in enumerate(self.callable):
            strict = not free or function.strict
            schema = _closed(function.parameters) if strict else {"type": "object"}
            head = json.dumps(f'{{"name": "{function.name}", "{form.key}": ')
            rules.append(f'call_{number}: {head} %json {_one_line(schema)} "}}"')
        calls = (f"call_{number}" for number in range(len(self.callable)))
        rules.append("call: " + " | ".join(calls))
        if answer is not None and self.choice == "auto":
            rules.append(f"answer: %json {_one_line(_schema_of(answer))}")
        return Grammar(GrammarKind.EBNF, "\n".join(rules))

    def for_template(
        self, messages: Sequence[Message], tokenizer: Tokenizer
    ) -> tuple[list[Message], list[dict[str, Any]]]:
        """The messages and tools as the model's chat template takes them. A template without
        functions gets them spelled out in the messages.
        """
        if not self.functions and not any(map(_has_calls, messages)):
            return [_with_thoughts(message) for message in messages], []
        offered = () if self.choice == "none" else self.functions
        described = [function.described for function in offered]
        read = [_with_thoughts(_read_calls(message)) for message in messages]
        if call_form(tokenizer.template) is not None:
            return read, described
        return list(_spelled_out(read, described)), []


NO_TOOLS = Tools()


def chosen(choice: str | Mapping[str, Any]) -> str:
    """The choice of a function as Tools has it, from the words of an interface."""
    if not isinstance(choice, Mapping):
        return choice
    kind, function = str(choice.get("type")), choice.get("function", choice)
    name = function.get("name") if isinstance(function, Mapping) else None
    return str(name or {"any": "required"}.get(kind, kind))


def call_form(template: str) -> CallForm | None:
    """The form of calls that a chat template has; None for one that knows no functions."""
    if any(mark in template for mark in _OTHER_FORMS):
        return None
    return next((form for form in (TAGGED, LLAMA, MISTRAL) if form.mark in template), None)


def _mark(tokenizer: Tokenizer, text: str) -> str:
    """A mark in a grammar: the token that stands for it, else its letters."""
    token = tokenizer.id_of(text) if text else None
    return json.dumps(text) if token is None else f"<[{token}]>"


def _closed(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    closed = "properties" in schema and schema.keys() <= _PLAIN
    return {**schema, "additionalProperties": False} if closed else schema


def _one_line(schema: Mapping[str, Any]) -> str:
    return json.dumps({**needed(schema), "x-guidance": _COMPACT})


def _schema_of(answer: Grammar) -> Mapping[str, Any]:
    """The schema of an answer that may stand in place of calls. Raises InvalidRequest for none."""
    try:
        schema = json.loads(answer.text) if answer.kind is GrammarKind.JSON_SCHEMA else None
    except ValueError:
        schema = None
    if not isinstance(schema, dict):
        raise InvalidRequest("beside tools the form of an answer is a JSON schema: an object")
    return schema


def _calls(form: CallForm, opening: str, closing: str, several: bool) -> str:
    """The rule of one or several calls. `begin` is the way to the first one's opening."""
    if form.bare:
        return "calls: begin call"
    if form.listed:
        return 'calls: begin "[" call ' + ('(", " call)* ' if several else "") + '"]"'
    more = rf'("\n" {opening} "\n" call "\n" {closing})*' if several else ""
    return rf'calls: begin "\n" call "\n" {closing} {more}'


def _has_calls(message: Message) -> bool:
    """Whether a message has calls, or the result of one, or calls in place of content."""
    called = message.get("tool_calls") or message.get("content") is None
    return bool(called) or message.get("role") == "tool"


def _read_calls(message: Message) -> Message:
    """The message with the arguments of its calls as objects, which chat templates want."""
    past = message.get("tool_calls")
    if not past:
        return message
    if not isinstance(past, Sequence) or isinstance(past, str):
        raise InvalidRequest(f"tool_calls are a list of calls: got {past!r:.80}")
    calls = []
    for call in past:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise InvalidRequest(
                'a call is {"id": ..., "function": {"name": ..., "arguments": ...}}'
            )
        parsed = {"name": function["name"], "arguments": _arguments(function.get("arguments"))}
        calls.append({"id": str(call.get("id", "")), "type": "function", "function": parsed})
    return {**message, "tool_calls": calls}


def _with_thoughts(message: Message) -> Message:
    """The message with its reasoning under all names that templates use."""
    reasoning = [thought for name in THOUGHTS if isinstance(thought := message.get(name), str)]
    thoughts = next(filter(None, reasoning), "")
    return {**message, **dict.fromkeys(THOUGHTS, thoughts)} if thoughts else message


def _arguments(arguments: Any) -> Mapping[str, Any]:
    """The arguments of a past call as an object, which every template can write. Other text, such
    as a call that was cut off, becomes a member of it.
    """
    if arguments is None or arguments == "":
        return {}
    read = read_object(arguments) if isinstance(arguments, str) else arguments
    if nests_deeply(read):
        raise InvalidRequest(f"the arguments of a call nest deeper than {MAX_DEPTH}")
    return read if isinstance(read, Mapping) else {"arguments": arguments}


def _spelled_out(messages: Sequence[Message], tools: Iterable[Any]) -> Iterable[Message]:
    """Messages for a template that knows no functions: system, user and assistant only."""
    lines = [json.dumps(tool, ensure_ascii=False) for tool in tools]
    first = messages[0] if messages else {}
    system = [_content(first)] if first.get("role") == "system" else []
    if lines:
        call = f'{TAGGED.opening}\n{{"name": NAME, "arguments": OBJECT}}\n{TAGGED.closing}'
        listed = "\n".join(["These functions can be called:", *lines])
        system += [f"{listed}\nTo call one, write:\n{call}"]
    if system:
        yield {"role": "system", "content": "\n\n".join(system)}
    results = list[str]()
    for message in messages[1 if first.get("role") == "system" else 0 :]:
        if message.get("role") == "tool":
            results.append(f"<tool_response>\n{_content(message)}\n</tool_response>")
            continue
        if results:
            yield {"role": "user", "content": "\n".join(results)}
            results = []
        calls = [_written(call["function"]) for call in message.get("tool_calls") or ()]
        content = [_content(message)] if message.get("content") else []
        rest = {name: value for name, value in message.items() if name != "tool_calls"}
        yield {**rest, "content": "\n".join([*content, *calls])}
    if results:
        yield {"role": "user", "content": "\n".join(results)}


def _content(message: Message) -> str:
    return str(message.get("content") or "")


def _written(call: Mapping[str, Any]) -> str:
    value = {"name": call["name"], "arguments": call["arguments"]}
    written = json.dumps(value, ensure_ascii=False)
    return f"{TAGGED.opening}\n{written}\n{TAGGED.closing}"
