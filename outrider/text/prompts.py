"""Makes requests from prompts (text, messages of a chat, token ids) and from a command's flags."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeGuard

from inference.command import say
from inference.errors import InvalidRequest, LimitExceeded
from inference.flags.group import brief
from inference.sampling import SEED_BITS, SamplingParams, random_seed
from inference.text.tokenizer import Tokenizer
from outrider.options.groups import SamplingOptions, TextOptions
from outrider.text.completion import Request
from outrider.text.parameters import Parameters, text_form
from outrider.text.pieces import StopStrings
from outrider.text.tool_calls import NO_TOOLS, Message, Tools

Prompt: TypeAlias = "str | Sequence[Message] | Sequence[int]"
"""Text to continue, the messages of a chat, or token ids."""


SLICE = 2**16
"""Characters of a long prompt that are tokenized at once."""


class TextModel(NamedTuple):
    """A model's facts needed to make requests: its tokenizer, limits and name.

    name: selects the model's defaults for what a request leaves open
    length: maximum tokens of prompt and output together
    stop_ids: tokens that end the output
    """

    name: str
    tokenizer: Tokenizer
    length: int
    stop_ids: frozenset[int]


class PromptTooLong(LimitExceeded):
    """A prompt leaves no room for output. `param` is the request's field with the prompt."""

    def __init__(self, prompt: Prompt, tokens: str, length: int) -> None:
        super().__init__(
            f"the prompt has {tokens} tokens: the sequence length is {length}, prompt and output "
            "together"
        )
        self.param = "messages" if is_chat(prompt) else "prompt"


def is_chat(prompt: Prompt) -> TypeGuard[Sequence[Message]]:
    """Return whether a prompt consists of messages."""
    return bool(prompt) and isinstance(prompt[0], Mapping)


def make_request(
    model: TextModel, prompt: Prompt, parameters: Parameters, index: int = 0
) -> Request:
    """Make the request for a prompt. Raises PromptTooLong for a prompt that does not fit.

    The sequence length bounds the work even for a huge prompt. Raises InvalidRequest for a prompt
    that is empty or has ids out of range.
    """
    parameters = parameters.settled(model.name)
    tools = parameters.functions()
    _check_kind(prompt)
    _check_size(model, prompt, parameters.tools)
    ids = _encode(model, prompt, tools, parameters)
    if len(ids) >= model.length:
        raise PromptTooLong(prompt, str(len(ids)), model.length)
    room = model.length - len(ids)
    seed = random_seed() if parameters.seed is None else parameters.seed
    return Request(
        index,
        prompt if isinstance(prompt, str) else "",
        ids,
        _sampling(model, parameters, tools, min(seed, 2**SEED_BITS - 1)),
        min(parameters.max_tokens or room, room),
        _end_ids(model, parameters),
        stop=parameters.stop or (),
        cache_key=parameters.prompt_cache_key,
        tools=tools,
    )


def _sampling(
    model: TextModel, parameters: Parameters, tools: Tools | None, seed: int
) -> SamplingParams:
    """Return the sampling parameters, completed by what depends on the model: grammar and ids."""
    params = parameters.sampling(seed)
    _check_ids(model, parameters.logit_bias)
    grammar = params.grammar
    if tools is not None:
        grammar = tools.grammar(model.tokenizer, grammar)
    if grammar is not None and parameters.ignore_eos:
        raise InvalidRequest("ignore_eos is not supported with a form: the form ends the text")
    ends = tuple(sorted(_end_ids(model, parameters)))
    top_k = 0 if parameters.top_k >= model.tokenizer.vocabulary else params.top_k
    return replace(params, grammar=grammar, top_k=top_k, end_ids=ends if params.min_tokens else ())


def _end_ids(model: TextModel, parameters: Parameters) -> frozenset[int]:
    """Return the tokens that end the output."""
    _check_ids(model, parameters.stop_token_ids)
    stop_ids = frozenset[int]() if parameters.ignore_eos else model.stop_ids
    special = model.tokenizer.special_tokens(parameters.stop or ())
    return stop_ids.union(parameters.stop_token_ids, special)


def _check_ids(model: TextModel, ids: Iterable[int]) -> None:
    """Raise InvalidRequest for ids that the tokenizer does not have."""
    vocabulary = model.tokenizer.vocabulary
    if wrong := [token for token in ids if not 0 <= token < vocabulary]:
        raise InvalidRequest(f"token ids are 0 to {vocabulary - 1}: got {wrong[0]}")


def resume_request(
    model: TextModel, request: Request, token_ids: Sequence[int]
) -> tuple[Request, str, int]:
    """Return a request for the rest of an interrupted output, the text so far, and its token count.

    With the same seed the rest is the same as without the interruption. Last tokens that are no
    whole character, or that may begin a stop string, are generated again. Raises InvalidRequest
    for ids out of range, and for an output that is complete.

    token_ids: the output so far
    """
    stream, stops = model.tokenizer.stream(request.ids), StopStrings(request.stop)
    decoded, certain, text, tokens = "", 0, "", 0
    _check_ids(model, token_ids)
    for count, token in enumerate(token_ids, start=1):
        piece = stream.push(token)
        may_stop = count > request.params.min_tokens
        decoded, certain = decoded + piece, certain + len(stops.push(piece) if may_stop else piece)
        if piece and stream.is_whole and certain == len(decoded):
            text, tokens = decoded, count
    if tokens >= request.max_new_tokens:
        raise InvalidRequest(f"the text is whole: it has its {request.max_new_tokens} tokens")
    ids, remaining = [*request.ids, *token_ids[:tokens]], request.max_new_tokens - tokens
    params = replace(request.params, made=tokens)
    return replace(request, ids=ids, params=params, max_new_tokens=remaining), text, tokens


def _check_kind(prompt: object) -> None:
    """Raise InvalidRequest unless the prompt is text, messages or token ids."""
    if isinstance(prompt, str):
        return
    items = prompt if isinstance(prompt, Sequence) else [None]
    if not any(all(isinstance(item, kind) for item in items) for kind in (Mapping, int)):
        raise InvalidRequest(
            f"a prompt is text, the messages of a chat, or token ids: got {brief(prompt)}"
        )


def _check_size(model: TextModel, prompt: Prompt, tools: Sequence[Mapping[str, Any]]) -> None:
    """Raise PromptTooLong for a prompt far beyond the sequence length.

    A long prompt is tokenized in slices, until its tokens exceed what fits by a quarter: slices
    have a few more tokens in sum than the whole prompt.
    """
    tokens, limit = 0, model.length * 5 // 4
    if isinstance(prompt, str):
        texts = [prompt]
    else:
        messages = prompt if is_chat(prompt) else []
        fields = [field for message in messages for field in message.items()]
        texts = [*(str(value) for name, value in fields if name != "role"), *map(str, tools)]
        tokens = len(prompt)  # an id is a token, a message at least one
    if sum(map(len, texts)) > 8 * model.length:
        for piece in (text[at : at + SLICE] for text in texts for at in range(0, len(text), SLICE)):
            if tokens > limit:
                break
            tokens += len(model.tokenizer.encode(piece))
    if tokens > limit:
        raise PromptTooLong(prompt, f"more than {model.length}", model.length)


def _encode(
    model: TextModel, prompt: Prompt, tools: Tools | None, parameters: Parameters
) -> Sequence[int]:
    """Return a prompt's token ids. Raises InvalidRequest if it is empty or has ids out of range."""
    if is_chat(prompt):
        return model.tokenizer.encode_chat(
            *(tools or NO_TOOLS).for_template(prompt, model.tokenizer),
            parameters.chat_template_kwargs,
            continues=parameters.continue_final_message,
        )
    if tools:
        raise InvalidRequest("tools need a chat: a prompt of messages")
    if isinstance(prompt, str):
        return model.tokenizer.encode(prompt)
    if not prompt:
        raise InvalidRequest("the prompt is empty")
    ids = [token for token in prompt if isinstance(token, int)]
    _check_ids(model, ids)
    return ids


def read_prompts(options: TextOptions) -> list[str]:
    """Read the prompts: --prompt, or each line of --prompt_text; `-` is standard input."""
    if (options.prompt is None) == (options.prompt_text is None):
        both = "both were given" if options.prompt is not None else "neither was given"
        raise InvalidRequest(f"--prompt TEXT or --prompt_text FILE is needed: {both}")
    if options.prompt is not None:
        standard_input = options.prompt == "-"
        prompts = [_read("--prompt", "-").rstrip("\n") if standard_input else options.prompt]
    else:
        lines = _read("--prompt_text", options.prompt_text or "").splitlines()
        prompts = [line for line in lines if line.strip()]
    if not prompts or not prompts[0]:
        source = options.prompt_text or options.prompt
        where = "standard input" if source == "-" else options.prompt_text
        raise InvalidRequest(
            f"{where}: there is no prompt" if where else "the prompt is empty: give it text"
        )
    return prompts


def _read(flag: str, path: str) -> str:
    """Read a text file, or standard input for `-`."""
    try:
        raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{flag} {path} cannot be read: {error.strerror}") from error
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InvalidRequest(
            f"{flag} {path} is not UTF-8: line {line} has the byte 0x{raw[error.start]:02x}; "
            "convert it, as with iconv -t utf-8"
        ) from error


def _read_schema(path: str) -> str:
    """Read a JSON schema from a file. Raises InvalidRequest, naming the file."""
    schema = _read("--schema", path)
    try:
        text_form(schema=schema)
    except InvalidRequest as error:
        raise InvalidRequest(f"--schema {path}: {error}") from error
    return schema


def parameters_of(options: SamplingOptions) -> Parameters:
    """Return the parameters that a command's flags set."""
    return Parameters(
        options.max_new_tokens, options.temperature, options.top_k, options.top_p, options.seed
    )


def make_requests(model: TextModel, options: TextOptions, prompts: Sequence[str]) -> list[Request]:
    """Make a request of each prompt, each with its own seed. Raises InvalidRequest for a prompt
    that does not fit.
    """
    seed = min(random_seed(), 2**SEED_BITS - len(prompts)) if options.seed is None else options.seed
    schema = options.json_schema and _read_schema(options.json_schema)
    parameters = replace(parameters_of(options), schema=schema, regex=options.regex)
    requests = []
    for index, prompt in enumerate(prompts):
        content = [{"role": "user", "content": prompt}] if options.chat else prompt
        try:
            request = make_request(model, content, replace(parameters, seed=seed + index), index)
        except PromptTooLong as error:
            raise InvalidRequest(f"prompt {index}: {error}") from error
        requests.append(replace(request, prompt=prompt))
    shortest = min(request.max_new_tokens for request in requests)
    if shortest < options.max_new_tokens:
        say(
            f"note: --max_new_tokens {options.max_new_tokens} is cut to {shortest} by the sequence "
            f"length of {model.length}, prompt and output together"
        )
    if not requests[0].params.greedy:
        say(f"seed {seed}")
    return requests
