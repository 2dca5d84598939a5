"""Parameters of a request, the model's defaults for them, and the grammar of the output."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from inference.errors import InvalidRequest
from inference.sampling import (
    CANDIDATES,
    MIN_TEMPERATURE,
    MIN_TOP_P,
    Grammar,
    GrammarKind,
    SamplingParams,
)
from outrider.text.json_values import written
from outrider.text.pieces import StopStrings
from outrider.text.tool_calls import Function, Tools, chosen


class TextDefaults(NamedTuple):
    """A model's defaults.

    temperature: None for the interface's default: 1 over HTTP, 0 elsewhere
    stop: stop strings of a request that sets neither temperature nor stop strings
    suggestions: example prompts
    """

    temperature: float | None = None
    stop: tuple[str, ...] = ()
    suggestions: tuple[str, ...] = (
        "Explain speculative decoding in three sentences.",
        "Write a Python function that merges two sorted lists.",
        "Which numbers solve x² = 2x + 3?",
    )


DEFAULTS = {
    # This model continues Python, and loops when greedy. Stop strings end a function or a class.
    "outrider-embedded-target": TextDefaults(
        temperature=0.8,
        stop=("\n\n\n", "\n\n#", "\ndef ", "\nclass ", "\nif __name__"),
        suggestions=(
            'def read_lines(path):\n    """Return the lines of a file."""\n    with open(path',
            'def splitext(path):\n    """Split the extension from a pathname."""\n    sep =',
            'class Stack:\n    """A stack of items."""\n\n    def __init__(self):\n'
            "        self._items = []\n\n    def push(self, item):\n"
            "        self._items.append(item)\n\n    def",
        ),
    ),
}
"""Defaults by the name under which a target serves the model."""


def defaults_of(model: str) -> TextDefaults:
    """Return the defaults of the model with this name."""
    return DEFAULTS.get(model, TextDefaults())


GREEDY_TEMPERATURE = 1e-5
"""Temperatures below this value are greedy, as in vLLM."""


@dataclass(frozen=True)
class Parameters:
    """Parameters of a request. Raises InvalidRequest for values out of bounds.

    max_tokens: maximum tokens of the output; None for as many as fit
    temperature: 0, like any value below 1e-5, is greedy; None is the model's own default, else 0
    top_k: 0, like the size of the vocabulary, is off; values above 256 count as 256
    top_p: 1 is off; 0 leaves only the most likely token
    seed: seed of the sampling noise; None for a random seed
    stop: strings, special tokens included, that end the output and are left out of it; None is the
        model's own default if the temperature is None, too
    prompt_cache_key: requests with equal keys go to one replica, to use its cache of their prefix
    min_p: minimum probability of a token relative to the most likely token; 0 is off
    repetition_penalty: divides the logits of tokens in the prompt or the output; 1 is off
    presence_penalty, frequency_penalty: subtracted from logits of tokens in the output; 0 is off
    logit_bias: value added to the logit of each of these token ids
    schema: JSON schema that the output satisfies, as a mapping or as JSON
    regex: regular expression that the output matches
    choice: strings, one of which is the output
    grammar: grammar of the output in llguidance's Lark syntax
    logprobs: number of most likely tokens listed with each token's log-probability; None is off
    prompt_logprobs: whether the prompt's tokens get log-probabilities, too
    min_tokens: minimum tokens of the output, unless max_tokens is less
    stop_token_ids: tokens that end the output, in addition to the model's own end tokens
    ignore_eos: whether the model's own end tokens are ignored
    chat_template_kwargs: variables of the chat template, such as enable_thinking
    continue_final_message: whether a chat's last message is continued
    tools: functions that the model may call in a chat, in OpenAI's or Anthropic's format
    tool_choice: auto, none, required, the name of a function, or an interface's own format
    parallel_tool_calls: whether the output may contain several calls
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
        """Return the parameters with temperature and stop strings set, by default the model's own.
        With a grammar, tools, min_tokens or ignore_eos there are no stop strings by default.

        temperature: the default if the model has none
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
        """Return the sampling parameters with this seed. Out-of-range values are adjusted."""
        temperature, top_p = self.temperature or 0.0, self.top_p
        if 0 <= temperature < MIN_TEMPERATURE:
            temperature = 0.0 if temperature < GREEDY_TEMPERATURE else MIN_TEMPERATURE
        if 0 <= top_p < MIN_TOP_P:
            top_p = MIN_TOP_P
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
        """Return the functions that the model may call; None without tools."""
        choice = chosen(self.tool_choice)
        if not self.tools and choice in ("auto", "none"):
            return None
        functions = tuple(Function.read(tool) for tool in self.tools)
        return Tools(functions, choice, self.parallel_tool_calls)


RESERVED_VARIABLES = {"messages", "tools", "chat_template", "tokenize", "continue_final_message"}
"""Template variables that only Outrider may set."""


def text_form(**fields: Any) -> Grammar | None:
    """Return the grammar of the output from the one field that is set; None if none is.

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
    """Return the schema of OpenAI's response_format (chat or /v1/responses); None for free text."""
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
