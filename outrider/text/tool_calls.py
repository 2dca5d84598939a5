"""Functions that a model may call: listed in the prompt, and allowed by the output's grammar."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from inference.errors import InvalidRequest
from inference.sampling import Grammar, GrammarKind
from inference.text.tokenizer import Tokenizer
from outrider.text.call_reader import CallForm, CallReader
from outrider.text.json_values import MAX_DEPTH, needed, nests_deeply, read_object

Message: TypeAlias = Mapping[str, Any]
"""A message of a chat: its `role` and `content`. An assistant's message may also have `tool_calls`
and a key of THOUGHTS; a message of role tool is the result of the call `tool_call_id`.
"""

MAX_TOOLS = 128
"""Maximum functions of a request."""

NAME = r"[a-zA-Z0-9_-]{1,64}"
"""Pattern of valid function names."""

TAGGED = CallForm("<tool_call>", "<tool_call>", "</tool_call>")
LLAMA = CallForm("ipython", "<|python_tag|>", key="parameters", bare=True)
MISTRAL = CallForm("[TOOL_CALLS]", "[TOOL_CALLS]", listed=True)

THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""Keys of the assistant's reasoning in messages and chat templates."""

_OTHER_FORMS = ("<function=", "[ARGS]")
"""Marks of templates with an unknown format of calls: treated as templates without functions."""

_PLAIN = {"type", "properties", "required", "title", "description", "$defs", "$schema"}
"""A schema with only these keywords is closed: it allows no other properties."""

_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""The JSON style of chat templates, from which models learn it."""


_NO_ARGUMENTS = {"type": "object", "properties": {}}


@dataclass(frozen=True)
class Function:
    """A function that the model may call. Raises InvalidRequest for a name that is not allowed.

    parameters: JSON schema of its arguments
    strict: whether arguments must satisfy the schema even if a call was not required
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
        """Read a function in the format of OpenAI's chat, OpenAI's /v1/responses or Anthropic.

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
        """The function in the format that chat templates expect."""
        described = {"name": self.name, "description": self.description}
        return {"type": "function", "function": {**described, "parameters": self.parameters}}


@dataclass(frozen=True)
class Tools:
    """Functions that the model may call, and whether it must. Raises InvalidRequest if the choice
    names a function that is missing.

    choice: auto, none, required, or the name of the function to call
    several: whether the output may have more than one call
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
        """Functions that the choice allows to be called."""
        if self.choice in ("auto", "required"):
            return self.functions
        return tuple(function for function in self.functions if function.name == self.choice)

    @property
    def _several(self) -> bool:
        return self.several and self.choice in ("auto", "required")

    def reader(self, tokenizer: Tokenizer) -> CallReader | None:
        """Return a reader of calls in the output; None if no function may be called."""
        if not self.callable:
            return None
        names = frozenset(function.name for function in self.callable)
        form = call_form(tokenizer.template) or TAGGED
        return CallReader(form, names, several=self._several)

    def shown(self, tokenizer: Tokenizer) -> Mapping[int, str]:
        """Return special tokens to be shown as text, since they announce calls."""
        if not self.callable:
            return {}
        mark = (call_form(tokenizer.template) or TAGGED).opening
        token = tokenizer.id_of(mark)
        return {} if token is None or tokenizer.decode([token]) else {token: mark}

    def grammar(self, tokenizer: Tokenizer, answer: Grammar | None) -> Grammar | None:
        """Return the grammar of the output; `answer` if no function may be called.

        Calls have to satisfy their schemas if the choice requires a call, if the answer has a
        grammar, or if the function is strict.
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
        """Return messages and tools in the format of the model's chat template. For a template
        without functions, they are described in the messages.
        """
        if not self.functions and not any(map(_has_calls, messages)):
            return [_with_thoughts(message) for message in messages], []
        offered = () if self.choice == "none" else self.functions
        described = [function.described for function in offered]
        parsed = [_with_thoughts(_read_calls(message)) for message in messages]
        if call_form(tokenizer.template) is not None:
            return parsed, described
        return list(_spelled_out(parsed, described)), []


NO_TOOLS = Tools()


def chosen(choice: str | Mapping[str, Any]) -> str:
    """Convert an interface's tool_choice to the `choice` of Tools."""
    if not isinstance(choice, Mapping):
        return choice
    kind, function = str(choice.get("type")), choice.get("function", choice)
    name = function.get("name") if isinstance(function, Mapping) else None
    return str(name or {"any": "required"}.get(kind, kind))


def call_form(template: str) -> CallForm | None:
    """Return a chat template's format of calls; None for a template without functions."""
    if any(mark in template for mark in _OTHER_FORMS):
        return None
    return next((form for form in (TAGGED, LLAMA, MISTRAL) if form.mark in template), None)


def _mark(tokenizer: Tokenizer, text: str) -> str:
    """Write a mark in a grammar: as its special token, or as a string if it has none."""
    token = tokenizer.id_of(text) if text else None
    return json.dumps(text) if token is None else f"<[{token}]>"


def _closed(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    closed = "properties" in schema and schema.keys() <= _PLAIN
    return {**schema, "additionalProperties": False} if closed else schema


def _one_line(schema: Mapping[str, Any]) -> str:
    return json.dumps({**needed(schema), "x-guidance": _COMPACT})


def _schema_of(answer: Grammar) -> Mapping[str, Any]:
    """Return the schema of an answer without calls. Raises InvalidRequest if it has no schema."""
    try:
        schema = json.loads(answer.text) if answer.kind is GrammarKind.JSON_SCHEMA else None
    except ValueError:
        schema = None
    if not isinstance(schema, dict):
        raise InvalidRequest("beside tools the form of an answer is a JSON schema: an object")
    return schema


def _calls(form: CallForm, opening: str, closing: str, several: bool) -> str:
    """Return the grammar rule of one or several calls. The rule `begin` ends in an opening."""
    if form.bare:
        return "calls: begin call"
    if form.listed:
        return 'calls: begin "[" call ' + ('(", " call)* ' if several else "") + '"]"'
    repetition = rf'("\n" {opening} "\n" call "\n" {closing})*' if several else ""
    return rf'calls: begin "\n" call "\n" {closing} {repetition}'


def _has_calls(message: Message) -> bool:
    """Return whether a message has calls, is the result of a call, or has no content."""
    called = message.get("tool_calls") or message.get("content") is None
    return bool(called) or message.get("role") == "tool"


def _read_calls(message: Message) -> Message:
    """Return the message with its calls' arguments as objects, which chat templates expect."""
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
    """Return the message with its reasoning under each key of THOUGHTS."""
    reasoning = [thought for name in THOUGHTS if isinstance(thought := message.get(name), str)]
    thoughts = next(filter(None, reasoning), "")
    return {**message, **dict.fromkeys(THOUGHTS, thoughts)} if thoughts else message


def _arguments(arguments: Any) -> Mapping[str, Any]:
    """Return a past call's arguments as an object, which every template can write. Invalid JSON,
    as of a call that was cut off, becomes a member `arguments`.
    """
    if arguments is None or arguments == "":
        return {}
    value = read_object(arguments) if isinstance(arguments, str) else arguments
    if nests_deeply(value):
        raise InvalidRequest(f"the arguments of a call nest deeper than {MAX_DEPTH}")
    return value if isinstance(value, Mapping) else {"arguments": arguments}


def _spelled_out(messages: Sequence[Message], tools: Iterable[Any]) -> Iterable[Message]:
    """Yield messages for a template without functions: roles system, user and assistant only."""
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
