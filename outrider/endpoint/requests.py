"""Requests of the OpenAI interface: what is read, with its bounds, and what is refused in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

from annotated_types import Ge, Le, Len, Lt
from pydantic import BaseModel, Field, model_validator
from typing_extensions import Self

from inference.sampling import CANDIDATES, SEED_BITS
from outrider.endpoint.unserved import ServedFields
from outrider.text.generation import Message, Parameters, Prompt

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

_First = Field(fail_fast=True)  # of a long list only the first error is told
Ids: TypeAlias = Annotated[list[int], _First]


class StreamOptions(BaseModel):
    """What a stream has besides the text."""

    include_usage: bool | None = None


class TextPart(BaseModel):
    """A part of a message's content. Only text is read."""

    type: Literal["text"]
    text: Text


class ChatMessage(ServedFields):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[TextPart], _First] | None = None

    @model_validator(mode="after")
    def _has_content(self) -> Self:
        if self.content is None and self.role != "assistant":  # which may have said nothing
            raise ValueError(f"a message of the {self.role} needs content")
        return self

    @property
    def plain(self) -> Message:
        """The message with its parts joined. `developer` is today's word for `system`."""
        parts = self.content or ""
        content = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        return {"role": "system" if self.role == "developer" else self.role, "content": content}


class TextRequest(ServedFields):
    """What both kinds of request have.

    top_k and stream are as in other servers of this interface; top_k -1 is off, too.
    """

    model: Text | None = None
    max_tokens: Annotated[int, Ge(1)] | None = None
    temperature: Annotated[float, Ge(0), Le(1000)] | None = None
    top_p: Annotated[float, Ge(0), Le(1)] | None = None
    top_k: Annotated[int, Ge(-1), Le(CANDIDATES)] | None = None
    seed: Annotated[int, Ge(0), Lt(2**SEED_BITS - MOST_CHOICES)] | None = None
    stop: Text | Annotated[list[Text], _First] | None = None
    n: Annotated[int, Ge(1), Le(MOST_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    prompt_cache_key: Annotated[str, Len(max_length=MOST_KEY)] | None = None

    @property
    def choices(self) -> int:
        """How many texts are wanted."""
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the counts of tokens."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens

    def parameters(self) -> Parameters:
        """How the first text is made. Defaults are those of the interface: temperature 1."""
        stop: Sequence[str] = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return Parameters(
            max_tokens=self.most_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=max(self.top_k or 0, 0),
            top_p=self.top_p or 1.0,
            seed=self.seed,
            stop=stop,
            prompt_cache_key=self.prompt_cache_key or "",
        )


class ChatRequest(TextRequest):
    """A request for the next message of a chat."""

    messages: Annotated[list[ChatMessage], _First, Len(max_length=MOST_MESSAGES)]
    max_completion_tokens: Annotated[int, Ge(1)] | None = None

    @property
    def most_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def prompts(self) -> list[Prompt]:
        """The one prompt."""
        return [[message.plain for message in self.messages]]


class CompletionRequest(TextRequest):
    """A request for texts that go on after prompts: text or token ids, one or several."""

    prompt: (
        Text
        | Ids
        | Annotated[list[Text], _First, Len(max_length=MOST_PROMPTS)]
        | Annotated[list[Ids], _First, Len(max_length=MOST_PROMPTS)]
    )

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens or COMPLETION_TOKENS

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts, each as text or token ids."""
        given = self.prompt
        if isinstance(given, str) or all(isinstance(part, int) for part in given):
            return [given]  # type: ignore[list-item]  # a string, or ids of one prompt
        return list(given)  # type: ignore[arg-type]
