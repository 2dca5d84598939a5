"""Makes requests of prompts: text, messages of a chat or token ids, and the flags of a command."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from inference.command import say
from inference.errors import InvalidRequest, LimitExceeded
from inference.sampling import (
    CANDIDATES,
    LEAST_TEMPERATURE,
    LEAST_TOP_P,
    SEED_BITS,
    Grammar,
    GrammarKind,
    SamplingParams,
    random_seed,
)
from inference.text import Tokenizer
from outrider.options.groups import PromptOptions
from outrider.text.completion import Request
from outrider.text.defaults import defaults_of
from outrider.text.schemas import written
from outrider.text.stop_strings import StopStrings
from outrider.text.tool_calls import NO_TOOLS, Function, Message, Tools, chosen

if TYPE_CHECKING:
    from outrider.client.client import Client

Prompt: TypeAlias = "str | Sequence[Message] | Sequence[int]"
"""Text to go on with, the messages of a chat, or token ids."""


GREEDY_TEMPERATURE = 1e-5
"""Temperatures below this are greedy, as in vLLM."""

SLICE = 2**16
"""Characters of a long prompt that are counted at a time."""


class PromptTooLong(LimitExceeded):
    """A prompt leaves no room for a text. `param` is the field of a request that holds it."""

    def __init__(self, prompt: Prompt, tokens: str, length: int) -> None:
        super().__init__(
            f"the prompt has {tokens} tokens: the sequence length is {length}, prompt and output "
            "together"
        )
        chat = not isinstance(prompt, str) and isinstance(prompt[0], Mapping)
        self.param = "messages" if chat else "prompt"


@dataclass(frozen=True)
class Parameters:
    """Parameters of a text. Raises InvalidRequest for values out of bounds.

    max_tokens: tokens at most; None for as many as fit
    temperature: 0 is greedy, and so is less than 1e-5; None is the model's own default, else 0
    top_k: 0 is off, and so is the whole vocabulary; above 256 it is 256
    top_p: 1 is off; 0 leaves the most likely token
    seed: of the noise; None takes a random one
    stop: strings that end the text and are left out of it; None is the model's own default where
        the temperature is None, too
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

    def functions(self) -> Tools:
        """The functions that the text may call."""
        functions = tuple(Function.read(tool) for tool in self.tools)
        return Tools(functions, chosen(self.tool_choice), self.parallel_tool_calls)


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


def make_request(client: Client, prompt: Prompt, parameters: Parameters, index: int = 0) -> Request:
    """The request for a text. Raises PromptTooLong for a prompt that does not fit.

    The work on any prompt is bounded by the sequence length. Raises InvalidRequest for a prompt
    that is empty or out of range.
    """
    parameters = parameters.settled(client.model)
    tools = parameters.functions()
    _check_size(client, prompt, parameters.tools)
    ids = read_prompt(client, prompt, tools, parameters)
    if len(ids) >= client.length:
        raise PromptTooLong(prompt, str(len(ids)), client.length)
    room = client.length - len(ids)
    seed = random_seed() if parameters.seed is None else parameters.seed
    return Request(
        index,
        prompt if isinstance(prompt, str) else "",
        ids,
        _sampling(client, parameters, tools, min(seed, 2**SEED_BITS - 1)),
        min(parameters.max_tokens or room, room),
        _end_ids(client, parameters),
        stop=parameters.stop or (),
        cache_key=parameters.prompt_cache_key,
        tools=tools,
    )


def _sampling(client: Client, parameters: Parameters, tools: Tools, seed: int) -> SamplingParams:
    """The sampling parameters with what the client's model decides: form, ids, least length."""
    params = parameters.sampling(seed)
    _check_ids(client, parameters.logit_bias)
    grammar = tools.grammar(client.tokenizer, params.grammar)
    if grammar is not None and parameters.ignore_eos:
        raise InvalidRequest("ignore_eos is not served beside a form: the form ends the text")
    ends = tuple(sorted(_end_ids(client, parameters)))
    top_k = 0 if parameters.top_k >= client.tokenizer.vocabulary else params.top_k
    return replace(params, grammar=grammar, top_k=top_k, end_ids=ends if params.min_tokens else ())


def _end_ids(client: Client, parameters: Parameters) -> frozenset[int]:
    """The tokens that end a text."""
    _check_ids(client, parameters.stop_token_ids)
    own = frozenset[int]() if parameters.ignore_eos else client.target.description.stop_ids
    return own | frozenset(parameters.stop_token_ids)


def _check_ids(client: Client, ids: Iterable[int]) -> None:
    """Raise InvalidRequest for ids that the tokenizer does not know."""
    vocabulary = client.tokenizer.vocabulary
    if wrong := [token for token in ids if not 0 <= token < vocabulary]:
        raise InvalidRequest(f"token ids are 0 to {vocabulary - 1}: got {wrong[0]}")


def going_on(client: Client, request: Request, made: Sequence[int]) -> tuple[Request, str, int]:
    """The rest of a text that broke off: its request, the text so far, and the tokens of that.

    With the same seed the rest is what it would have been. Tokens at the end are made again where
    they are no whole character, or may begin a stop string. Raises InvalidRequest for ids out of
    range, and for a whole text.

    made: tokens that came
    """
    stream, stops = client.tokenizer.stream(request.ids), StopStrings(request.stop)
    said, certain, text, kept = "", 0, "", 0
    for count, token in enumerate(read_prompt(client, made), start=1):
        piece = stream.push(token)
        may_stop = count > request.params.min_tokens
        said, certain = said + piece, certain + len(stops.push(piece) if may_stop else piece)
        if piece and stream.is_whole and certain == len(said):
            text, kept = said, count
    if kept >= request.max_new_tokens:
        raise InvalidRequest(f"the text is whole: it has its {request.max_new_tokens} tokens")
    ids, left = [*request.ids, *made[:kept]], request.max_new_tokens - kept
    params = replace(request.params, made=kept)
    return replace(request, ids=ids, params=params, max_new_tokens=left), text, kept


def _check_size(client: Client, prompt: Prompt, tools: Sequence[Mapping[str, Any]]) -> None:
    """Raise PromptTooLong where a prompt far beyond the sequence length shows this.

    Long text is counted slice by slice, up to a quarter more tokens than fit: a cut makes a few
    more tokens than the whole has.
    """
    tokens, most = 0, client.length * 5 // 4
    if isinstance(prompt, str):
        texts = [prompt]
    else:
        said = [one.items() for one in prompt if isinstance(one, Mapping)]
        texts = [str(value) for one in said for name, value in one if name != "role"]
        texts += map(str, tools)
        tokens = len(prompt)  # each id, or message, is one at least
    if sum(map(len, texts)) > 8 * client.length:
        for part in (text[at : at + SLICE] for text in texts for at in range(0, len(text), SLICE)):
            if tokens > most:
                break
            tokens += len(client.tokenizer.encode(part))
    if tokens > most:
        raise PromptTooLong(prompt, f"more than {client.length}", client.length)


def read_prompt(
    client: Client,
    prompt: Prompt,
    tools: Tools = NO_TOOLS,
    parameters: Parameters | None = None,
) -> Sequence[int]:
    """The token ids of a prompt. Raises InvalidRequest for one that is empty or out of range."""
    if tools.functions and (isinstance(prompt, str) or not prompt or isinstance(prompt[0], int)):
        raise InvalidRequest("tools are told to a chat: a prompt of messages is needed")
    if isinstance(prompt, str):
        return client.tokenizer.encode(prompt)
    if not prompt:
        raise InvalidRequest("the prompt is empty")
    messages = [part for part in prompt if isinstance(part, Mapping)]
    if messages:
        chat = parameters or Parameters()
        return client.tokenizer.encode_chat(
            *tools.told(messages, client.tokenizer),
            chat.chat_template_kwargs,
            continues=chat.continue_final_message,
        )
    ids = [part for part in prompt if isinstance(part, int)]
    _check_ids(client, ids)
    return ids


def read_prompts(options: PromptOptions) -> list[str]:
    """The prompts: --prompt, or the lines of --prompt_text. For `-`, what standard input holds."""
    if (options.prompt is None) == (options.prompt_text is None):
        raise InvalidRequest("give one of --prompt TEXT and --prompt_text FILE")
    if options.prompt is not None:
        standard_input = options.prompt == "-"
        prompts = [_read("--prompt", "-").rstrip("\n") if standard_input else options.prompt]
    else:
        lines = _read("--prompt_text", options.prompt_text or "").splitlines()
        prompts = [line for line in lines if line.strip()]
    if not prompts or not prompts[0]:
        raise InvalidRequest("the prompt is empty: at least one character is needed")
    return prompts


def _read(flag: str, path: str) -> str:
    """The text of a file, or of standard input for `-`."""
    try:
        raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{flag} {path} cannot be read: {error}") from error
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InvalidRequest(
            f"{flag} {path} is not UTF-8: line {line} has the byte 0x{raw[error.start]:02x}; "
            "convert it, as with iconv -t utf-8"
        ) from error


def make_requests(
    options: PromptOptions,
    prompts: Sequence[str],
    tokenizer: Tokenizer,
    length: int,
    stop_ids: frozenset[int],
    model: str,
) -> list[Request]:
    """Requests of these prompts, each with its own seed. Raises InvalidRequest for a prompt that
    does not fit.

    length: the longest text, prompt and output together
    model: the target, whose defaults count where the options give no temperature
    """
    seed = min(random_seed(), 2**SEED_BITS - len(prompts)) if options.seed is None else options.seed
    schema = options.json_schema and _read("--schema", options.json_schema)
    given = Parameters(
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        schema=schema,
        regex=options.regex,
    ).settled(model)
    base = given.sampling(seed)
    requests = []
    for index, prompt in enumerate(prompts):
        ids = tokenizer.encode(prompt, chat=options.chat)
        if len(ids) >= length:
            raise InvalidRequest(
                f"prompt {index} has {len(ids)} tokens: the sequence length is {length}, prompt "
                "and output together"
            )
        room = min(options.max_new_tokens, length - len(ids))
        params = replace(base, seed=seed + index)
        requests.append(Request(index, prompt, ids, params, room, stop_ids, stop=given.stop or ()))
    least = min(request.max_new_tokens for request in requests)
    if least < options.max_new_tokens:
        say(
            f"note: --max_new_tokens {options.max_new_tokens} is cut to {least} by the sequence "
            f"length of {length}, prompt and output together"
        )
    if not base.greedy:
        say(f"seed {seed}")
    return requests
