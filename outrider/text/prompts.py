"""Makes requests of prompts: text, messages of a chat or token ids, and the flags of a command."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from inference.command import say
from inference.errors import InvalidRequest, LimitExceeded
from inference.sampling import SEED_BITS, SamplingParams, random_seed
from inference.text import Tokenizer
from outrider.options.groups import PromptOptions
from outrider.text.completion import Request
from outrider.text.stop_strings import StopStrings

if TYPE_CHECKING:
    from outrider.client.client import Client

Message: TypeAlias = Mapping[str, str]
"""A message of a chat: its `role` (system, user or assistant) and its `content`."""

Prompt: TypeAlias = "str | Sequence[Message] | Sequence[int]"
"""Text to go on with, the messages of a chat, or token ids."""


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
    temperature: 0 is greedy
    top_k: 0 is off
    top_p: 1 is off
    seed: of the noise; None takes a random one
    stop: strings that end the text and are left out of it
    prompt_cache_key: texts of one key go to one replica, which may have their beginning computed
    """

    max_tokens: int | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: Sequence[str] = ()
    prompt_cache_key: str = ""

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InvalidRequest(f"max_tokens is 1 or more: got {self.max_tokens}")
        StopStrings(self.stop)
        self.sampling(0)

    def sampling(self, seed: int) -> SamplingParams:
        """The sampling parameters with this seed."""
        return SamplingParams(self.temperature, self.top_k, self.top_p, seed).on_the_wire()


def make_request(client: Client, prompt: Prompt, parameters: Parameters, index: int = 0) -> Request:
    """The request for a text. Raises PromptTooLong for a prompt that does not fit.

    The work on any prompt is bounded by the sequence length. Raises InvalidRequest for a prompt
    that is empty or out of range.
    """
    _check_size(client, prompt)
    ids = read_prompt(client, prompt)
    if len(ids) >= client.length:
        raise PromptTooLong(prompt, str(len(ids)), client.length)
    room = client.length - len(ids)
    seed = random_seed() if parameters.seed is None else parameters.seed
    return Request(
        index,
        prompt if isinstance(prompt, str) else "",
        ids,
        parameters.sampling(min(seed, 2**SEED_BITS - 1)),
        min(parameters.max_tokens or room, room),
        client.target.description.stop_ids,
        stop=parameters.stop,
        cache_key=parameters.prompt_cache_key,
    )


def going_on(client: Client, request: Request, made: Sequence[int]) -> tuple[Request, str, int]:
    """The rest of a text that broke off: its request, the text so far, and the tokens of that.

    With the same seed the rest is what it would have been. Tokens at the end that are no whole
    character are made again. Raises InvalidRequest for ids out of range, and for a whole text.

    made: tokens that came
    """
    stream, text, kept = client.tokenizer.stream(request.ids), "", 0
    for count, token in enumerate(read_prompt(client, made), start=1):
        piece = stream.push(token)
        if piece:
            text, kept = text + piece, count
    if kept >= request.max_new_tokens:
        raise InvalidRequest(f"the text is whole: it has its {request.max_new_tokens} tokens")
    ids, left = [*request.ids, *made[:kept]], request.max_new_tokens - kept
    return replace(request, ids=ids, max_new_tokens=left), text, kept


def _check_size(client: Client, prompt: Prompt) -> None:
    """Raise PromptTooLong where a prompt far beyond the sequence length shows this.

    Long text is counted slice by slice, up to a quarter more tokens than fit: a cut makes a few
    more tokens than the whole has.
    """
    tokens, most = 0, client.length * 5 // 4
    if isinstance(prompt, str):
        texts = [prompt]
    else:
        texts = [one.get("content", "") for one in prompt if isinstance(one, Mapping)]
        tokens = len(prompt)  # each id, or message, is one at least
    if sum(map(len, texts)) > 8 * client.length:
        for part in (text[at : at + SLICE] for text in texts for at in range(0, len(text), SLICE)):
            if tokens > most:
                break
            tokens += len(client.tokenizer.encode(part))
    if tokens > most:
        raise PromptTooLong(prompt, f"more than {client.length}", client.length)


def read_prompt(client: Client, prompt: Prompt) -> Sequence[int]:
    """The token ids of a prompt. Raises InvalidRequest for one that is empty or out of range."""
    if isinstance(prompt, str):
        return client.tokenizer.encode(prompt)
    if not prompt:
        raise InvalidRequest("the prompt is empty")
    messages = [part for part in prompt if isinstance(part, Mapping)]
    if messages:
        return client.tokenizer.encode_chat(messages)
    ids = [part for part in prompt if isinstance(part, int)]
    wrong = [token for token in ids if not 0 <= token < client.tokenizer.vocabulary]
    if wrong:
        raise InvalidRequest(
            f"token ids are 0 to {client.tokenizer.vocabulary - 1}: got {wrong[0]}"
        )
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
) -> list[Request]:
    """Requests of these prompts, each with its own seed. Raises InvalidRequest for a prompt that
    does not fit.

    length: the longest text, prompt and output together
    """
    seed = min(random_seed(), 2**SEED_BITS - len(prompts)) if options.seed is None else options.seed
    base = options.sampling(seed)
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
        requests.append(Request(index, prompt, ids, params, room, stop_ids))
    least = min(request.max_new_tokens for request in requests)
    if least < options.max_new_tokens:
        say(
            f"note: --max_new_tokens {options.max_new_tokens} is cut to {least} by the sequence "
            f"length of {length}, prompt and output together"
        )
    if not base.greedy:
        say(f"seed {seed}")
    return requests
