"""Parameters of a text, and its grammar."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from inference.errors import InvalidRequest
from inference.sampling import (
    CANDIDATES,
    LEAST_TEMPERATURE,
    LEAST_TOP_P,
    Grammar,
    GrammarKind,
    SamplingParams,
)
from outrider.text.defaults import defaults_of
from outrider.text.stop_strings import StopStrings
from outrider.text.tools.schemas import written
from outrider.text.tools.tool_calls import Function, Tools, chosen

GREEDY_TEMPERATURE = 1e-5
"""Temperatures below this are greedy, as in vLLM."""


@dataclass(frozen=True)
class Parameters:
    """Parameters of a text. Raises InvalidRequest for values out of bounds.

    max_tokens: maximum tokens; None for as many as fit
    temperature: 0 is greedy, as are values below 1e-5; None is the model's own default, else 0
    top_k: 0 is off, as is the whole vocabulary; above 256 it is 256
    top_p: 1 is off; 0 leaves the most likely token
    seed: of the sampling noise; None takes a random one
    stop: strings that end the text and are left out of it, including special tokens; None is the
        model's own default if the temperature is None, too
    prompt_cache_key: requests of one key go to one replica, which may have cached their beginning
    min_p: minimum probability of a token relative to the most likely one; 0 is off
    repetition_penalty: divides the logits of tokens of prompt and text; 1 is off
    presence_penalty, frequency_penalty: subtracted from the logits of tokens of the text; 0 is off
    logit_bias: added to the logits of these token ids
    schema: JSON schema of the text, as a mapping or as JSON
    regex: regular expression that the text matches
    choice: strings, one of which is the text
    grammar: grammar of the text in llguidance's Lark syntax
    logprobs: number of most likely tokens listed with each token's log-probability; None for none
    prompt_logprobs: whether the prompt's tokens get log-probabilities, too
    min_tokens: minimum tokens, unless max_tokens is less
    stop_token_ids: tokens that end the text, in addition to the model's own
    ignore_eos: whether the model's own end tokens are ignored
    chat_template_kwargs: variables of the chat template, such as enable_thinking
    continue_final_message: whether a chat's last message is continued
    tools: functions that a chat may call, in OpenAI's or Anthropic's format
    tool_choice: auto, none, required, the name of a function, or an interface's own format
    parallel_tool_calls: whether a text may have several calls
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: Sequence[str] | None = None
    prompt_cache_key: str = ""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    schema: Mapping[str, Any] | str | bool | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    logprobs: int | None = None
    prompt_logprobs: bool = False
    min_tokens: int = 0
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    continue_final_message: bool = False
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: str | Mapping[str, Any] = "auto"
    parallel_tool_calls: bool = True

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InvalidRequest(f"max_tokens is 1 or more: got {self.max_tokens}")
        if reserved := RESERVED_VARIABLES & self.chat_template_kwargs.keys():
            raise InvalidRequest(
                f"chat_template_kwargs are the template's own variables: got {min(reserved)}"
            )
        StopStrings(self.stop or ())
        self.sampling(0)
        self.functions()

    def settled(self, model: str, temperature: float = 0.0) -> Parameters:
        """The parameters with a temperature and stop strings, which default to the model's own. A
        text with a grammar, tools or a length has no stop strings by default.

        temperature: where the model has no default
        """
        defaults = defaults_of(model)
        default = temperature if defaults.temperature is None else defaults.temperature
        forms = (self.schema, self.regex, self.choice, self.grammar, self.tools or None)
        length = self.min_tokens or self.ignore_eos
        free = self.temperature is None and not length and all(form is None for form in forms)
        return replace(
            self,
            temperature=default if self.temperature is None else self.temperature,
            stop=(defaults.stop if free else ()) if self.stop is None else self.stop,
        )

    def sampling(self, seed: int) -> SamplingParams:
        """The sampling parameters with this seed. Values out of range become valid ones."""
        temperature, top_p = self.temperature or 0.0, self.top_p
        if 0 <= temperature < LEAST_TEMPERATURE:
            temperature = 0.0 if temperature < GREEDY_TEMPERATURE else LEAST_TEMPERATURE
        if 0 <= top_p < LEAST_TOP_P:
            top_p = LEAST_TOP_P
        return SamplingParams(
            temperature,
            min(self.top_k, CANDIDATES),
            top_p,
            seed,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=tuple(sorted(self.logit_bias.items())),
            grammar=text_form(
                schema=self.schema, regex=self.regex, choice=self.choice, grammar=self.grammar
            ),
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
            min_tokens=self.min_tokens,
        ).on_the_wire()

    def functions(self) -> Tools | None:
        """The functions that the text may call; None for a text without tools."""
        choice = chosen(self.tool_choice)
        if not self.tools and choice in ("auto", "none"):
            return None
        functions = tuple(Function.read(tool) for tool in self.tools)
        return Tools(functions, choice, self.parallel_tool_calls)


RESERVED_VARIABLES = {"messages", "tools", "chat_template", "tokenize", "continue_final_message"}
"""Variables that the caller of a template sets."""


def text_form(**fields: Any) -> Grammar | None:
    """The form of a text, of which there is one at most; None for any text.

    fields: schema, regex, choice and grammar of Parameters
    """
    forms = {name: form for name, form in fields.items() if form is not None}
    if len(forms) > 1:
        raise InvalidRequest(f"a text has one form: got {' and '.join(forms)}")
    for name, form in forms.items():
        if name == "schema":
            form = written(form)
        return Grammar(_KINDS[name], form if isinstance(form, str) else json.dumps(form))
    return None


_KINDS = {
    "schema": GrammarKind.JSON_SCHEMA,
    "regex": GrammarKind.REGEX,
    "choice": GrammarKind.CHOICE,
    "grammar": GrammarKind.EBNF,
}


def schema_of(form: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The schema of OpenAI's response_format, in a chat or in /v1/responses; None for any text."""
    kind, inner = form.get("type"), form.get("json_schema")
    described = inner if isinstance(inner, Mapping) else form
    schema = described.get("schema") or (kind == "json_object" and {"type": "object"})
    if kind == "text":
        return None
    if schema is True:  # any JSON
        schema = {}
    if kind not in ("json_object", "json_schema") or not isinstance(schema, Mapping):
        raise InvalidRequest("response_format is text, json_object, or json_schema with a schema")
    return schema
