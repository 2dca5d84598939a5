"""Requests of the OpenAI interface: supported fields with their bounds, and refused fields with the
reason.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal, Self, TypeAlias

from annotated_types import Ge, Gt, Le, Len, Lt
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from inference.sampling import MAX_END_IDS, MAX_LOGPROBS, SEED_BITS
from outrider.endpoint.interfaces.chat_messages import ChatMessage, First, JsonObject, Text
from outrider.text.json_values import MAX_DEPTH, nests_deeply
from outrider.text.parameters import Parameters, schema_of
from outrider.text.prompts import Prompt
from outrider.text.tool_calls import MAX_TOOLS

MAX_CHOICES = 8
"""Maximum outputs per prompt (n)."""

COMPLETION_TOKENS = 16
"""Default max_tokens of a completion, as OpenAI defines it."""

SEEDS = 2**SEED_BITS - MAX_CHOICES
"""Number of seeds for a prompt's first output. Requested seeds are taken modulo this number."""

MAX_CACHE_KEY = 256
"""Maximum characters of a prompt_cache_key."""

MAX_PROMPTS, MAX_MESSAGES = 1024, 4096
"""Maximum number of prompts, and of messages. MAX_REQUESTS limits the outputs."""


def _some(tokens: int) -> int:
    if tokens == 0:
        raise ValueError("1 or more is needed, or -1 for as many as fit: got 0")
    return tokens


Length: TypeAlias = Annotated[int, Ge(-1), AfterValidator(_some)]
TokenId: TypeAlias = Annotated[int, Field(strict=True)]  # refuses true and false
Ids: TypeAlias = Annotated[list[TokenId], First]

REASONS = {
    ": it would change the target's own choice": "length_penalty no_repeat_ngram_size bad_words "
    "allowed_token_ids logits_processors typical_p top_a tfs_z top_n_sigma mirostat dynatemp_range "
    "xtc_probability dry_multiplier samplers use_beam_search num_beams do_sample",
    ": use repetition_penalty, which acts on prompt and text": "repeat_penalty",
    ": use response_format or structured_outputs": "grammar json_schema regex ebnf guided_json "
    "guided_regex guided_choice guided_grammar format output_format verbosity modalities audio",
    " here: use logprobs of /v1/completions, with echo for a prompt's": "top_logprobs n_probs "
    "prompt_logprobs",
    " here: use tools of /v1/chat/completions": "tools functions tool_calls function_call "
    "web_search_options mcp_servers",
    ": no answer is stored, so send the whole conversation": "previous_response_id conversation "
    "background container prompt",
    ": the model's own template makes the prompt": "chat_template add_special_tokens documents "
    "thinking_token_budget",
    ": use max_tokens": "n_predict max_new_tokens num_predict",
    ": a text ends at the model's stop ids, stop_token_ids, max_tokens or stop": "min_new_tokens "
    "include_stop_str_in_output t_max_predict_ms",
    ": texts come without special tokens": "skip_special_tokens spaces_between_special_tokens",
    ": send the final prompt": "echo suffix truncate_prompt_tokens prompt_embeds input_prefix "
    "input_suffix options",
    ": request n texts and choose yourself": "best_of",
}
"""Refused fields, which would change the output, by the end of "FIELD is not served"."""

UNSERVED = {name: reason for reason, names in REASONS.items() for name in names.split()}

NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("repeat_penalty", "length_penalty"), (1,)),
    **dict.fromkeys(("typical_p", "tfs_z", "best_of", "num_beams"), (1,)),
    **dict.fromkeys(("skip_special_tokens", "spaces_between_special_tokens"), (True,)),
    "add_special_tokens": (),
    "do_sample": (True,),
    "modalities": (["text"],),
    "verbosity": ("medium",),
    "function_call": ("none", "auto"),
    "top_n_sigma": (-1, 0),
}
"""Values without effect. For other fields these are null, false, zero and empty values."""


_PARAMETERS = {field.name for field in fields(Parameters)}


class UnservedField(ValueError):
    """A request has an unsupported field, named by `param`."""

    def __init__(self, param: str) -> None:
        super().__init__(f"{param} is not served{UNSERVED[param]}")
        self.param = param


class StreamOptions(BaseModel):
    """Options of a stream: what it contains in addition to the output."""

    include_usage: bool | None = None


class TextRequest(BaseModel):
    """Fields of chats and of text completions. Fields in UNSERVED are refused; other unknown fields
    are ignored, since every client sends some.

    Fields that OpenAI lacks work as in other servers of this interface: max_tokens -1 is
    unbounded, seed -1 is random, top_k -1 is off, and an empty stop string is ignored.
    """

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    model: Text | None = None
    max_tokens: Annotated[int, Ge(-1)] | None = None
    min_tokens: Annotated[int, Ge(0)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[Ids, Len(max_length=MAX_END_IDS)] | None = None
    temperature: Annotated[float, Ge(0), Le(1000)] | None = None
    top_p: Annotated[float, Ge(0), Le(1)] | None = None
    top_k: Annotated[int, Ge(-1)] | None = None
    min_p: Annotated[float, Ge(0), Le(1)] | None = None
    repetition_penalty: Annotated[float, Gt(0)] | None = None
    presence_penalty: Annotated[float, Ge(-2), Le(2)] | None = None
    frequency_penalty: Annotated[float, Ge(-2), Le(2)] | None = None
    logit_bias: dict[int, Annotated[float, Ge(-100), Le(100)]] | None = None
    seed: Annotated[int, Ge(-(2**63)), Lt(2**64)] | None = None
    stop: Text | Annotated[list[Text], First] | None = None
    n: Annotated[int, Ge(1), Le(MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    prompt_cache_key: Annotated[str, Len(max_length=MAX_CACHE_KEY)] | None = None
    response_format: JsonObject | None = None
    structured_outputs: dict[Literal["json", "regex", "choice"], Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_shallow(cls, fields: Any) -> Any:
        if nests_deeply(fields):
            raise ValueError(f"objects and lists nest deeper than {MAX_DEPTH}")
        return fields

    @model_validator(mode="after")
    def _is_served(self) -> Self:
        for name, value in (self.model_extra or {}).items():
            asks = value is not None and name in UNSERVED
            if asks and (value not in NEUTRAL[name] if name in NEUTRAL else value):
                raise UnservedField(name)
        if self.structured_outputs and self.response_format not in (None, {"type": "text"}):
            raise ValueError("response_format and structured_outputs exclude each other")
        return self

    @property
    def choices(self) -> int:
        """Number of outputs per prompt."""
        return self.n or 1

    @property
    def max_length(self) -> int | None:
        """Maximum tokens of an output; None for as many as fit."""
        return None if self.max_tokens == -1 else self.max_tokens

    def parameters(self, **overrides: Any) -> Parameters:
        """Return the parameters of the first output. Fields of the same name are passed on.

        overrides: parameters from fields that only one kind of request has
        """
        form = {str(name): value for name, value in (self.structured_outputs or {}).items()}
        schema = schema_of(self.response_format) if self.response_format else None
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        changed = {
            "max_tokens": self.max_length,
            "top_k": max(self.top_k or 0, 0),
            "seed": None if self.seed in (None, -1) else self.seed % SEEDS,
            "stop": None if stop is None else [string for string in stop if string],
            "schema": form.get("json", schema),
            "regex": form.get("regex"),
            "choice": form.get("choice"),
        }
        same = {name: getattr(self, name) for name in _PARAMETERS & type(self).model_fields.keys()}
        values = same | changed | overrides
        return Parameters(**{name: value for name, value in values.items() if value is not None})


class ChatRequest(TextRequest):
    """A request for the next message of a chat."""

    messages: Annotated[list[ChatMessage], First, Len(max_length=MAX_MESSAGES)]
    max_tokens: Length | None = None
    max_completion_tokens: Length | None = None
    chat_template_kwargs: JsonObject | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    reasoning_effort: Text | None = None
    reasoning: JsonObject | None = None
    thinking: JsonObject | None = None
    tools: Annotated[list[JsonObject], Len(max_length=MAX_TOOLS)] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Ge(0), Le(MAX_LOGPROBS)] | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        if self.add_generation_prompt and self.continue_final_message:
            raise ValueError("add_generation_prompt and continue_final_message exclude each other")
        return self

    @property
    def max_length(self) -> int | None:
        newer = self.max_completion_tokens  # the newer name
        length = self.max_tokens if newer is None else newer
        return None if length == -1 else length

    @property
    def variables(self) -> JsonObject:
        """Variables of the chat template. Other interfaces' reasoning fields get the names that
        templates use; chat_template_kwargs take precedence.
        """
        reasoning, kind = self.reasoning or {}, (self.thinking or {}).get("type")
        effort = self.reasoning_effort or reasoning.get("effort")
        thinks = {"enabled": True, "adaptive": True, "disabled": False}.get(str(kind))
        if isinstance(reasoning.get("enabled"), bool):
            thinks = reasoning["enabled"]
        if effort == "none":
            thinks = False
        values = {
            "reasoning_effort": effort,
            "enable_thinking": thinks,
            "thinking": thinks,
            "add_generation_prompt": self.add_generation_prompt,
        }
        variables = {name: value for name, value in values.items() if value is not None}
        return variables | (self.chat_template_kwargs or {})

    @property
    def prompts(self) -> list[Prompt]:
        """The prompt, as a list of one."""
        return [[message.plain for message in self.messages]]

    def parameters(self, **overrides: Any) -> Parameters:
        scored = (self.top_logprobs or 0) if self.logprobs else None
        return super().parameters(logprobs=scored, chat_template_kwargs=self.variables, **overrides)


class CompletionRequest(TextRequest):
    """A request to continue one or several prompts, each text or token ids.

    logprobs: false is also off
    echo: whether the answer includes the prompt; with max_tokens 0 it is only the prompt
    """

    prompt: (
        Text
        | Ids
        | Annotated[list[Text], First, Len(max_length=MAX_PROMPTS)]
        | Annotated[list[Ids], First, Len(max_length=MAX_PROMPTS)]
    )
    logprobs: Annotated[int, Ge(0), Le(MAX_LOGPROBS)] | Literal[False] | None = None
    echo: bool | None = None

    @model_validator(mode="after")
    def _generates_something(self) -> Self:
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens 0 generates nothing: it needs echo: true")
        if self.echo and self.stream and self.logprobs not in (None, False):
            raise ValueError("logprobs of a prompt are not streamed: leave out stream or echo")
        return self

    @property
    def max_length(self) -> int | None:
        if self.max_tokens is None:
            return COMPLETION_TOKENS
        return None if self.max_tokens == -1 else max(self.max_tokens, 1)

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts, each as text or token ids."""
        prompt = self.prompt
        if isinstance(prompt, str) or all(isinstance(item, int) for item in prompt):
            return [prompt]  # type: ignore[list-item]  # a string, or ids of one prompt
        return list(prompt)  # type: ignore[arg-type]

    def parameters(self, **overrides: Any) -> Parameters:
        scored = None if self.logprobs is False else self.logprobs
        echoed = bool(self.echo) and scored is not None
        return super().parameters(logprobs=scored, prompt_logprobs=echoed, **overrides)
