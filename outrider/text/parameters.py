"""Parameters of a text, and the form that it keeps to."""

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
from outrider.text.schemas import written
from outrider.text.stop_strings import StopStrings
from outrider.text.tool_calls import Function, Tools, chosen

GREEDY_TEMPERATURE = 1e-5
"""Temperatures below this are greedy, as in vLLM."""


@dataclass(frozen=True)
class Parameters:
    """Parameters of a text. Raises InvalidRequest for values out of bounds.

    max_tokens: tokens at most; None for as many as fit
    temperature: 0 is greedy, and so is less than 1e-5; None is the model's own default, else 0
    top_k: 0 is off, and so is the whole vocabulary; above 256 it is 256
    top_p: 1 is off; 0 leaves the most likely token
    seed: of the noise; None takes a random one
    stop: strings that end the text and are left out of it, special tokens among them; None is the
        model's own default where the temperature is None, too
    prompt_cache_key: texts of one key go to one replica, which may have their beginning computed
    min_p: tokens below this part of the likeliest one's chance are left out; 0 is off
    repetition_penalty: divides the logits of tokens of prompt and text; 1 is off
    presence_penalty, frequency_penalty: taken from the logits of tokens of the text; 0 is off
    logit_bias: added to the logits of these token ids
    schema: JSON schema that the text keeps to, as a mapping or as JSON
    regex: regular expression that the text matches
    choice: strings of which the text is one
    grammar: grammar of the text, as llguidance's Lark syntax has it
    logprobs: likeliest tokens whose log-probabilities are told beside each token's; None for none
    prompt_logprobs: whether those of the prompt's tokens are told, too
    min_tokens: the text does not end before it has so many, unless max_tokens are fewer
    stop_token_ids: tokens that end the text, beside those of the model
    ignore_eos: whether the model's own tokens that end a text do not
    chat_template_kwargs: variables of the chat template, such as enable_thinking
    continue_final_message: whether a chat's last message is continued
    tools: functions that a chat may call, as OpenAI's or Anthropic's interface describes them
    tool_choice: auto, none, required, the name of a function, or as an interface says it
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
        text with a form, tools or a length has no stop strings by default: they could cut it.

        temperature: where the model has no default
        """
        defaults = defaults_of(model)
        known = temperature if defaults.temperature is None else defaults.temperature
        forms = (self.schema, self.regex, self.choice, self.grammar, self.tools or None)
        length = self.min_tokens or self.ignore_eos
        free = self.temperature is None and not length and all(form is None for form in forms)
        return replace(
            self,
            temperature=known if self.temperature is None else self.temperature,
            stop=(defaults.stop if free else ()) if self.stop is None else self.stop,
        )

    def sampling(self, seed: int) -> SamplingParams:
        """The sampling parameters with this seed. Values beyond what is computed mean the nearest
        one that is.
        """
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
"""Names that are none of a template's own variables."""


def text_form(**given: Any) -> Grammar | None:
    """The form of a text, of which one is given at most; None for any text.

    given: the fields schema, regex, choice and grammar of Parameters
    """
    forms = {name: form for name, form in given.items() if form is not None}
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
    kind, given = form.get("type"), form.get("json_schema")
    described = given if isinstance(given, Mapping) else form
    schema = described.get("schema") or (kind == "json_object" and {"type": "object"})
    if kind == "text":
        return None
    if schema is True:  # any JSON
        schema = {}
    if kind not in ("json_object", "json_schema") or not isinstance(schema, Mapping):
        raise InvalidRequest("response_format is text, json_object, or json_schema with a schema")
    return schema
