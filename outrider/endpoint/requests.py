"""Requests of the OpenAI interface: fields that are read, with their bounds, and fields that are
refused, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self, TypeAlias

from annotated_types import Ge, Le, Len, Lt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from inference.sampling import CANDIDATES, SEED_BITS
from outrider.text.prompts import Message, Parameters, Prompt

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


_CHOICE = "is not served: it would change the target's own choice"
_TEMPLATE = "is not served: the model's own template makes the prompt"
_LOGPROBS = "is not served: only token ids leave the target"
_FORM = "is not served: the form of a text is not enforced"
_TOOLS = "is not served: no tool calls are made"

REASONS = {
    _CHOICE: "logit_bias presence_penalty frequency_penalty repetition_penalty repeat_penalty "
    "length_penalty no_repeat_ngram_size bad_words allowed_token_ids logits_processors min_p "
    "typical_p top_a tfs_z top_n_sigma mirostat dynatemp_range xtc_probability dry_multiplier "
    "samplers use_beam_search num_beams do_sample",
    _FORM: "response_format grammar json_schema regex ebnf structured_outputs guided_json "
    "guided_regex guided_choice guided_grammar format verbosity modalities audio",
    _LOGPROBS: "logprobs top_logprobs prompt_logprobs n_probs",
    _TOOLS: "tools functions tool_calls function_call web_search_options",
    _TEMPLATE: "chat_template chat_template_kwargs add_generation_prompt continue_final_message "
    "add_special_tokens documents reasoning_effort thinking_token_budget",
    "is not served: max_tokens bounds a text": "n_predict max_new_tokens num_predict",
    "is not served: a text ends at the model's stop ids, max_tokens or stop": "min_tokens "
    "min_new_tokens ignore_eos stop_token_ids include_stop_str_in_output t_max_predict_ms",
    "is not served: texts come without special tokens": "skip_special_tokens "
    "spaces_between_special_tokens",
    "is not served: send the prompt that is wanted": "echo suffix truncate_prompt_tokens "
    "prompt_embeds input_prefix input_suffix options",
    "is not served: ask for n texts and choose yourself": "best_of",
}
"""Reasons to refuse fields that would change the text, and the fields."""

UNSERVED = {name: reason for reason, names in REASONS.items() for name in names.split()}

NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("repetition_penalty", "repeat_penalty", "length_penalty"), (1,)),
    **dict.fromkeys(("typical_p", "tfs_z", "best_of", "num_beams"), (1,)),
    **dict.fromkeys(("skip_special_tokens", "spaces_between_special_tokens"), (True,)),
    "add_generation_prompt": (True,),
    "add_special_tokens": (),
    "do_sample": (True,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "verbosity": ("medium",),
    "reasoning_effort": ("none",),
    "function_call": ("none", "auto"),
    "top_n_sigma": (-1, 0),
}
"""Values that ask for nothing. Of other fields these are null, false, zero and what is empty."""


class UnservedField(ValueError):
    """A request has a field that is not served. `param` is its name."""

    def __init__(self, param: str) -> None:
        super().__init__(f"{param} {UNSERVED[param]}")
        self.param = param


class ServedFields(BaseModel):
    """A part of a request. A field that would change the text and is not served is refused.

    Other unknown fields are ignored, since every client sends some.
    """

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    @model_validator(mode="after")
    def _is_served(self) -> Self:
        for name, value in (self.model_extra or {}).items():
            asks = value is not None and name in UNSERVED
            if asks and (value not in NEUTRAL[name] if name in NEUTRAL else value):
                raise UnservedField(name)
        return self


class StreamOptions(BaseModel):
    """Parts of a stream besides the text."""

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
    """Fields of both kinds of request.

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
