"""Makes requests from the flags of a text: prompts are read, turned into ids, and each gets a
seed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from inference.command import say
from inference.errors import InvalidRequest
from inference.sampling import SEED_BITS, random_seed
from inference.text import Tokenizer
from outrider.options.groups import PromptOptions
from outrider.text.completion import Request


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
