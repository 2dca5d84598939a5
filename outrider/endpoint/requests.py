"""Requests of the OpenAI interface: the fields that are read, with their bounds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Self, TypeAlias

from annotated_types import Ge, Gt, Le, Len, Lt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from inference.sampling import CANDIDATES, MOST_LOGPROBS, SEED_BITS
from outrider.endpoint.served_fields import ServedFields
from outrider.text.prompts import Parameters, Prompt
from outrider.text.tool_calls import MOST_TOOLS, NAME, Message

MOST_CHOICES = 8
"""Texts of one prompt in one request."""

COMPLETION_TOKENS = 16
"""Tokens of a completion that names no max_tokens, as the interface defines it."""

MOST_KEY = 256
"""Characters of a prompt_cache_key."""

MOST_BYTES = 8 * 2**20
"""Bytes of a request's body at most."""

MOST_PROMPTS, MOST_MESSAGES = 1024, 4096
"""Prompts, and messages of a chat, that a request may list. --most_texts bounds its texts."""

Text: TypeAlias = Annotated[str, Len(max_length=MOST_BYTES)]
"""A string that is Unicode: without a bound half of a surrogate pair would pass."""

JsonObject: TypeAlias = dict[str, Any]

_First = Field(fail_fast=True)  # of a long list only the first error is told
Ids: TypeAlias = Annotated[list[int], _First]


class StreamOptions(BaseModel):
    """Parts of a stream besides the text."""

    include_usage: bool | None = None


class TextPart(BaseModel):
    """A part of a message's content. Only text is read."""

    type: Literal["text"]
    text: Text


class CalledFunction(BaseModel):
    """The function of a call. arguments: JSON"""

    name: Text
    arguments: Text


class SentCall(BaseModel):
    """A call that the assistant has made."""

    id: Text
    type: Literal["function"] = "function"
    function: CalledFunction

    @property
    def plain(self) -> JsonObject:
        """The call as chat templates take it, with an object of arguments where they are one."""
        name, arguments = self.function.name, self.function.arguments
        try:
            parsed = json.loads(arguments)
        except ValueError:
            parsed = None
        given = parsed if isinstance(parsed, dict) else arguments
        return {"id": self.id, "type": self.type, "function": {"name": name, "arguments": given}}


class ChatMessage(ServedFields):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | Annotated[list[TextPart], _First] | None = None
    tool_calls: Annotated[list[SentCall], _First, Len(max_length=MOST_TOOLS)] | None = None
    tool_call_id: Text | None = None

    @model_validator(mode="after")
    def _has_content(self) -> Self:
        if self.content is None and self.role != "assistant":  # which may have said nothing
            raise ValueError(f"a message of the {self.role} needs content")
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"the assistant makes tool_calls: got them from the {self.role}")
        return self

    @property
    def plain(self) -> Message:
        """The message with its parts joined. `developer` is today's word for `system`."""
        parts = self.content or ""
        content = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        role = "system" if self.role == "developer" else self.role
        calls = {"tool_calls": [call.plain for call in self.tool_calls]} if self.tool_calls else {}
        result = {"tool_call_id": self.tool_call_id or ""} if role == "tool" else {}
        return {"role": role, "content": content, **calls, **result}


class FunctionDescription(BaseModel):
    """A function that a text may call. parameters: JSON schema of its arguments"""

    name: Annotated[str, Field(pattern=f"^{NAME}$")]
    description: Text | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class Tool(BaseModel):
    """A tool: functions are the only kind."""

    type: Literal["function"]
    function: FunctionDescription


def tool_of(kind: Any, function: JsonObject) -> JsonObject:
    """A tool of another interface in a request for a chat, which refuses other kinds by name."""
    return {"type": kind, "function": function} if kind == "function" else {"type": kind}


class ChosenFunction(BaseModel):
    """The name of a function."""

    name: Text


class ChosenTool(BaseModel):
    """The function that is to be called."""

    type: Literal["function"]
    function: ChosenFunction


class SchemaForm(BaseModel):
    """A JSON schema that a text keeps to."""

    form: JsonObject = Field(alias="schema")


class ResponseFormat(BaseModel):
    """The form of a text."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaForm | None = None

    @model_validator(mode="after")
    def _has_schema(self) -> Self:
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("json_schema needs a field json_schema with a schema")
        return self

    @property
    def parameters(self) -> JsonObject:
        """The form as a parameter of a text."""
        if self.type == "text":
            return {}
        return {"schema": self.json_schema.form if self.json_schema else {"type": "object"}}


class StructuredOutputs(BaseModel):
    """The form of a text, with vLLM's names."""

    model_config = ConfigDict(extra="forbid")

    form: JsonObject | Text | None = Field(default=None, alias="json")
    regex: Text | None = None
    choice: Annotated[list[Text], _First, Len(1, MOST_PROMPTS)] | None = None

    @property
    def parameters(self) -> JsonObject:
        """The form as a parameter of a text."""
        return {"schema": self.form, "regex": self.regex, "choice": self.choice}


class TextRequest(ServedFields):
    """Fields of both kinds of request.

    top_k, min_p, repetition_penalty and stream are as in other servers of this interface; top_k -1
    is off, too.
    """

    model: Text | None = None
    max_tokens: Annotated[int, Ge(1)] | None = None
    temperature: Annotated[float, Ge(0), Le(1000)] | None = None
    top_p: Annotated[float, Ge(0), Le(1)] | None = None
    top_k: Annotated[int, Ge(-1), Le(CANDIDATES)] | None = None
    min_p: Annotated[float, Ge(0), Le(1)] | None = None
    repetition_penalty: Annotated[float, Gt(0)] | None = None
    presence_penalty: Annotated[float, Ge(-2), Le(2)] | None = None
    frequency_penalty: Annotated[float, Ge(-2), Le(2)] | None = None
    logit_bias: dict[int, Annotated[float, Ge(-100), Le(100)]] | None = None
    seed: Annotated[int, Ge(0), Lt(2**SEED_BITS - MOST_CHOICES)] | None = None
    stop: Text | Annotated[list[Text], _First] | None = None
    n: Annotated[int, Ge(1), Le(MOST_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    prompt_cache_key: Annotated[str, Len(max_length=MOST_KEY)] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None

    @property
    def choices(self) -> int:
        """Number of texts of each prompt."""
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the counts of tokens."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens

    def parameters(self) -> Parameters:
        """The parameters of the first text. Defaults are those of the interface: temperature 1."""
        stop: Sequence[str] = [self.stop] if isinstance(self.stop, str) else self.stop or []
        form = JsonObject()
        for given in (self.response_format, self.structured_outputs):
            form |= given.parameters if given is not None else {}
        return Parameters(
            max_tokens=self.most_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=max(self.top_k or 0, 0),
            top_p=self.top_p or 1.0,
            min_p=self.min_p or 0.0,
            repetition_penalty=self.repetition_penalty or 1.0,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            logit_bias=self.logit_bias or {},
            seed=self.seed,
            stop=stop,
            prompt_cache_key=self.prompt_cache_key or "",
            **form,
        )


class ChatRequest(TextRequest):
    """A request for the next message of a chat."""

    messages: Annotated[list[ChatMessage], _First, Len(max_length=MOST_MESSAGES)]
    max_completion_tokens: Annotated[int, Ge(1)] | None = None
    tools: Annotated[list[Tool], _First, Len(max_length=MOST_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Ge(0), Le(MOST_LOGPROBS)] | None = None

    @model_validator(mode="after")
    def _tells_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        return self

    @property
    def most_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def prompts(self) -> list[Prompt]:
        """The one prompt."""
        return [[message.plain for message in self.messages]]

    def parameters(self) -> Parameters:
        choice = self.tool_choice or "auto"
        return replace(
            super().parameters(),
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            tools=[tool.model_dump(exclude_none=True) for tool in self.tools or ()],
            tool_choice=choice if isinstance(choice, str) else choice.function.name,
            parallel_tool_calls=self.parallel_tool_calls is not False,
        )


class CompletionRequest(TextRequest):
    """A request for texts that go on after prompts: text or token ids, one or several.

    logprobs: false is off, too
    echo: the prompt stands before the text; with max_tokens 0 it stands alone
    """

    prompt: (
        Text
        | Ids
        | Annotated[list[Text], _First, Len(max_length=MOST_PROMPTS)]
        | Annotated[list[Ids], _First, Len(max_length=MOST_PROMPTS)]
    )
    max_tokens: Annotated[int, Ge(0)] | None = None
    logprobs: Literal[False] | Annotated[int, Ge(0), Le(MOST_LOGPROBS)] | None = None
    echo: bool | None = None

    @model_validator(mode="after")
    def _makes_something(self) -> Self:
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens 0 makes nothing: it needs echo: true")
        if self.echo and self.stream and self.logprobs not in (None, False):
            raise ValueError("a stream tells no logprobs of a prompt: leave out stream or echo")
        return self

    @property
    def most_tokens(self) -> int | None:
        return COMPLETION_TOKENS if self.max_tokens is None else max(self.max_tokens, 1)

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts, each as text or token ids."""
        given = self.prompt
        if isinstance(given, str) or all(isinstance(part, int) for part in given):
            return [given]  # type: ignore[list-item]  # a string, or ids of one prompt
        return list(given)  # type: ignore[arg-type]

    def parameters(self) -> Parameters:
        told = None if self.logprobs is False else self.logprobs
        prompt = bool(self.echo) and told is not None
        return replace(super().parameters(), logprobs=told, prompt_logprobs=prompt)
