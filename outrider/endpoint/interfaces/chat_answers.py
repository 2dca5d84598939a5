"""Answers in the format of OpenAI's chat and text completions, with their token counts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar
from uuid import uuid4

from inference.order import TokenLogProb
from inference.text.tokenizer import Tokenizer
from outrider.client.client import Client
from outrider.endpoint.interfaces.answering import Answer
from outrider.endpoint.interfaces.chat_messages import JsonObject
from outrider.endpoint.interfaces.failures import ApiError
from outrider.endpoint.interfaces.requests import ChatRequest, CompletionRequest
from outrider.text.completion import Completion, Request
from outrider.text.pieces import Piece

DONE = "[DONE]"
"""The last event of a stream."""


class _Writer(Answer):
    """Writes what OpenAI's chat and text completions have in common."""

    PREFIX: ClassVar[str]
    WHOLE: ClassVar[str]
    CHUNK: ClassVar[str]

    def __init__(
        self, client: Client, body: ChatRequest | CompletionRequest, requests: Sequence[Request]
    ) -> None:
        super().__init__(client, body, requests)
        self._id, self._created = f"{self.PREFIX}-{uuid4().hex}", int(time.time())
        self._scored = body.logprobs is not None and body.logprobs is not False

    def whole(self, texts: Sequence[Completion]) -> JsonObject:
        choices = [
            self._choice(index, self._content(index, text), finish_reason(text))
            for index, text in enumerate(texts)
        ]
        return self._frame(self.WHOLE, choices) | self._counts(texts)

    def finish(self, index: int, text: Completion) -> Iterable[str]:
        yield self._chunk(index, self._delta(""), finish_reason(text))

    def end(self, texts: Sequence[Completion]) -> Iterable[str]:
        """Yield the chunk with the token counts, if it was requested, and the end mark."""
        options = self._body.stream_options
        if options is not None and options.include_usage:
            yield json.dumps(self._frame(self.CHUNK, []) | self._counts(texts))
        yield DONE

    def fail(self, error: ApiError) -> Iterable[str]:
        return json.dumps(error.body), DONE

    def _content(self, index: int, text: Completion) -> JsonObject:
        """Return the fields of a whole output: its text, and its log-probabilities if requested."""
        raise NotImplementedError

    def _delta(self, text: str) -> JsonObject:
        """Return a chunk's fields for a piece of text."""
        raise NotImplementedError

    def _chunk(self, index: int, content: JsonObject, finish: str | None = None) -> str:
        return json.dumps(self._frame(self.CHUNK, [self._choice(index, content, finish)]))

    def _choice(self, index: int, content: JsonObject, finish: str | None) -> JsonObject:
        return {"index": index, "finish_reason": finish, "logprobs": None, **content}

    def _frame(self, name: str, choices: Sequence[JsonObject]) -> JsonObject:
        head = {"id": self._id, "object": name, "created": self._created}
        return {**head, "model": self._client.model, "choices": choices}

    def _counts(self, texts: Sequence[Completion]) -> JsonObject:
        metrics = {"speculative_decoding": speculation(texts)}
        return {"usage": usage(texts, self._body.choices), "metrics": metrics}


class ChatWriter(_Writer):
    """Writes answers as OpenAI's chat completions."""

    PREFIX, WHOLE, CHUNK = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def begin(self) -> Iterable[str]:
        for index in range(len(self._requests)):
            yield self._chunk(index, {"delta": {"role": "assistant", "content": ""}})

    def add(self, index: int, piece: Piece) -> Iterable[str]:
        content, call = self._delta(piece.text), piece.call
        if call is not None:
            head = _call(call.id, call.name, call.arguments)
            delta = head if call.name else {"function": {"arguments": call.arguments}}
            content = {"delta": {"tool_calls": [{"index": call.number, **delta}]}}
        yield self._chunk(index, content | self._logprobs(piece.tokens, piece.logprobs))

    def _content(self, _index: int, text: Completion) -> JsonObject:
        return {"message": _message(text)} | self._logprobs(text.token_ids, text.logprobs)

    def _delta(self, text: str) -> JsonObject:
        return {"delta": {"content": text} if text else {}}

    def _logprobs(self, tokens: Sequence[int], scores: Sequence[TokenLogProb]) -> JsonObject:
        if not self._scored:
            return {}
        content = scored(self._client.tokenizer, tokens, scores)
        return {"logprobs": {"content": content, "refusal": None}}


def scored(
    tokenizer: Tokenizer, tokens: Sequence[int], scores: Sequence[TokenLogProb]
) -> list[JsonObject]:
    """Return tokens' log-probabilities and bytes in the format of OpenAI's chat."""

    def described(token: int, logprob: float) -> JsonObject:
        raw = tokenizer.token_bytes(token)
        return {"token": raw.decode(errors="replace"), "logprob": logprob, "bytes": list(raw)}

    return [
        described(token, score.value)
        | {"top_logprobs": list(map(described, score.ids, score.values))}
        for token, score in zip(tokens, scores, strict=True)
    ]


def _message(text: Completion) -> JsonObject:
    content = text.text or (None if text.tool_calls else "")
    message = {"role": "assistant", "content": content, "refusal": None}
    calls = [_call(*call) for call in text.tool_calls]
    return message | ({"tool_calls": calls} if calls else {})


def _call(call_id: str, name: str, arguments: str) -> JsonObject:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


class TextWriter(_Writer):
    """Writes answers as OpenAI's text completions, with the prompts if `echo` is set."""

    PREFIX, WHOLE, CHUNK = "cmpl", "text_completion", "text_completion"

    def __init__(
        self, client: Client, body: CompletionRequest, requests: Sequence[Request]
    ) -> None:
        super().__init__(client, body, requests)
        self._echo, self._nothing = bool(body.echo), body.max_tokens == 0
        self._offsets = [0] * len(requests)  # characters of each output so far
        self._streams = [
            client.tokenizer.stream(() if body.echo else request.ids) for request in requests
        ]

    def whole(self, texts: Sequence[Completion]) -> JsonObject:
        if self._nothing:
            texts = [replace(text, text="", token_ids=[], logprobs=[]) for text in texts]
        return super().whole(texts)

    def begin(self) -> Iterable[str]:
        for index in range(len(self._requests) if self._echo else 0):
            yield self._chunk(index, self._delta(self._prompt(index)))

    def add(self, index: int, piece: Piece) -> Iterable[str]:
        if not self._nothing:
            logprobs = self._logprobs(index, piece.tokens, piece.logprobs)
            yield self._chunk(index, self._delta(piece.text) | logprobs)

    def _delta(self, text: str) -> JsonObject:
        return {"text": text}

    def _content(self, index: int, text: Completion) -> JsonObject:
        prompt, ids, scores = "", list[int](), list[TokenLogProb | None](text.logprobs)
        if self._echo:
            prompt, ids = self._prompt(index), list(self._requests[index].ids)
            scores = [None, *text.prompt_logprobs, *scores]
        logprobs = self._logprobs(index, [*ids, *text.token_ids], scores)
        return {"text": prompt + text.text, **logprobs}

    def _prompt(self, index: int) -> str:
        request = self._requests[index]
        return request.prompt or self._client.tokenizer.decode(request.ids)

    def _logprobs(
        self, index: int, tokens: Sequence[int], scores: Sequence[TokenLogProb | None]
    ) -> JsonObject:
        """Return the field of log-probabilities, if requested. scores: None for a prompt's first
        token, which has none
        """
        if not self._scored:
            return {}
        words, offsets = [self._word(token) for token in tokens], list[int]()
        for token in tokens:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(self._streams[index].push(token))
        likeliest = [
            score
            and {
                **dict(zip(map(self._word, score.ids), score.values, strict=True)),
                word: score.value,
            }
            for word, score in zip(words, scores, strict=True)
        ]
        fields = {
            "tokens": words,
            "token_logprobs": [score and score.value for score in scores],
            "top_logprobs": likeliest,
            "text_offset": offsets,
        }
        return {"logprobs": fields}

    def _word(self, token: int) -> str:
        """Return a token as text, or as bytes if it is part of a character."""
        raw = self._client.tokenizer.token_bytes(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def finish_reason(text: Completion) -> str:
    """Return why an output ended, in OpenAI's terms."""
    if text.finish_reason == "stop":
        return "tool_calls" if text.tool_calls else "stop"
    return "length"  # or the spending limit


def usage(texts: Sequence[Completion], of_each: int = 1) -> dict[str, Any]:
    """Count the tokens of prompts (each once) and outputs. of_each: number of outputs per prompt.

    Cached tokens are those of the prompt that the target had computed before.
    """
    firsts = texts[::of_each]
    prompt = sum(text.prompt_tokens for text in firsts)
    generated = sum(len(text.token_ids) for text in texts)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {
            "cached_tokens": sum(
                min(text.traffic.reused_tokens, text.prompt_tokens) for text in firsts
            )
        },
    }


def speculation(done: Sequence[Completion]) -> dict[str, Any]:
    """Return counts of speculative decoding under vLLM's names, so that aiperf prints its table.

    acceptance_histogram: [n] number of forward passes in which n candidates were accepted
    """
    forwards = sum(text.traffic.forwards for text in done)
    drafted = sum(text.num_draft_tokens for text in done)
    accepted = sum(text.num_accepted_tokens for text in done)
    at_depth = [text.accepted.accepted_at_depth for text in done]
    deepest = max(map(len, at_depth), default=0)
    at_least = [forwards] + [
        sum(depths[depth] for depths in at_depth if depth < len(depths)) for depth in range(deepest)
    ]
    histogram = [n - deeper for n, deeper in zip(at_least, [*at_least[1:], 0], strict=True)]
    return {
        "mean_acceptance_length": 1 + accepted / forwards if forwards else 0.0,
        "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
        "acceptance_histogram": histogram,
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
        "num_spec_steps": forwards,
        "num_spec_tokens": deepest,
    }
