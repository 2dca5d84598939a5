"""OpenAI's /v1/responses, translated to and from a chat: items are messages and function calls.

Fields that this module does not define are handled as in a chat. No answer is stored: each request
sends the whole conversation.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Annotated, Any
from uuid import uuid4

from annotated_types import Len
from pydantic import BaseModel, ConfigDict

from inference.order import TokenLogProb
from outrider.client.client import Client
from outrider.endpoint.interfaces.answering import Answer, StreamEvent, named_event
from outrider.endpoint.interfaces.chat_answers import scored, usage
from outrider.endpoint.interfaces.chat_messages import JsonObject, Text, joined_text
from outrider.endpoint.interfaces.failures import ApiError
from outrider.endpoint.interfaces.requests import MAX_MESSAGES, ChatRequest
from outrider.text.completion import Completion, Request
from outrider.text.pieces import Piece

LOGPROBS = "message.output_text.logprobs"
"""The value of `include` that requests log-probabilities."""


class ResponseRequest(BaseModel):
    """A request for a conversation's answer. Other fields are handled as in a chat."""

    model_config = ConfigDict(extra="allow")

    input: Text | Annotated[list[JsonObject], Len(max_length=MAX_MESSAGES)]
    instructions: Text | None = None
    text: JsonObject | None = None  # `format`: the schema of the answer
    max_output_tokens: int | None = None
    include: list[str] | None = None  # values other than LOGPROBS are ignored

    def chat(self) -> ChatRequest:
        """Convert the request to a chat's."""
        first = [{"role": "system", "content": self.instructions}] if self.instructions else []
        user = [{"role": "user", "content": self.input}] if isinstance(self.input, str) else None
        chat_fields, text = self.model_extra or {}, self.text or {}
        fields = {
            "n": 1,
            "messages": [*first, *(user or _item_messages(self.input))],
            "max_completion_tokens": self.max_output_tokens,
            "response_format": text.get("format"),
            "verbosity": text.get("verbosity"),
            "logprobs": LOGPROBS in (self.include or ()) or bool(chat_fields.get("top_logprobs")),
        }
        return ChatRequest.model_validate(chat_fields | fields)


def _item_messages(items: Iterable[Any]) -> list[JsonObject]:
    """Convert items to messages of a chat. Reasoning is merged into the assistant's message after
    it, a call into the one before it.
    """
    messages = list[JsonObject]()
    for item in items:
        kind = item.get("type") or "message"
        if kind == "reasoning":
            thoughts = joined_text(item.get("content")) or joined_text(item.get("summary"))
            if thoughts:  # other reasoning items are encrypted
                messages.append({"role": "assistant", "reasoning_content": thoughts})
        elif kind == "function_call":
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant"})
            call = {"id": item.get("call_id"), "function": item}
            messages[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            result, called = item.get("output"), item.get("call_id")
            messages.append({"role": "tool", "content": result, "tool_call_id": called})
        elif kind == "message":
            message = {"role": item.get("role"), "content": item.get("content")}
            thought = messages[-1:] if message["role"] == "assistant" else []
            if thought and thought[0].keys() == {"role", "reasoning_content"}:
                thought[0].update(message)
            else:
                messages.append(message)
        else:
            raise ApiError(400, f"items of type {kind} are not served", param="input")
    return messages


class ResponseWriter(Answer):
    """Writes an output as items: messages and function calls."""

    def __init__(self, client: Client, chat: ChatRequest, requests: Sequence[Request]) -> None:
        super().__init__(client, chat, requests)
        self._id, self._created = f"resp_{uuid4().hex}", int(time.time())
        self._items, self._events = list[JsonObject](), 0  # so far
        self._open = ""  # type of the last item if further pieces may belong to it

    def whole(self, texts: Sequence[Completion]) -> JsonObject:
        (text,) = texts
        logprobs = [] if text.tool_calls else self._logprobs(text.token_ids, text.logprobs)
        messages = [_message(text.text, logprobs)] if text.text or not text.tool_calls else []
        return self._frame([*messages, *(_call(*call) for call in text.tool_calls)], text)

    def begin(self) -> Iterable[StreamEvent]:
        for name in ("response.created", "response.in_progress"):
            yield self._event(name, response=self._frame([], None))

    def add(self, _index: int, piece: Piece) -> Iterable[StreamEvent]:
        call = piece.call
        if call is not None:
            if call.name:
                yield from self._begin_item(_call(call.id, call.name, ""))
            if call.arguments:
                self._items[-1]["arguments"] += call.arguments
                yield self._item_event("function_call_arguments.delta", delta=call.arguments)
            return
        if self._open != "message":
            if not piece.text:  # tokens of a call
                return
            yield from self._begin_item(_message("", []), content=[])
            yield self._item_event("content_part.added", part=_part("", []))
        (part,), logprobs = self._items[-1]["content"], self._logprobs(piece.tokens, piece.logprobs)
        part["text"] += piece.text
        part["logprobs"] += logprobs
        yield self._item_event("output_text.delta", delta=piece.text, logprobs=logprobs)

    def finish(self, _index: int, _text: Completion) -> Iterable[StreamEvent]:
        return self._end_item()

    def end(self, texts: Sequence[Completion]) -> Iterable[StreamEvent]:
        response = self._frame(self._items, texts[0])
        yield self._event(f"response.{response['status']}", response=response)

    def fail(self, error: ApiError) -> Iterable[StreamEvent]:
        code = error.code or error.kind
        yield self._event("error", code=code, message=error.message, param=error.param)

    def _begin_item(self, item: JsonObject, **empty: Any) -> Iterable[StreamEvent]:
        """Add an item. empty: fields that are still empty in the event"""
        yield from self._end_item()
        self._items.append(item)
        begun, self._open = item | {"status": "in_progress"} | empty, item["type"]
        place = len(self._items) - 1
        yield self._event("response.output_item.added", output_index=place, item=begun)

    def _end_item(self) -> Iterable[StreamEvent]:
        if not self._open:
            return
        item, place = self._items[-1], len(self._items) - 1
        if self._open == "message":
            (part,) = item["content"]
            done = {"text": part["text"], "logprobs": part["logprobs"]}
            yield self._item_event("output_text.done", **done)
            yield self._item_event("content_part.done", part=part)
        else:
            yield self._item_event("function_call_arguments.done", arguments=item["arguments"])
        self._open = ""
        yield self._event("response.output_item.done", output_index=place, item=item)

    def _item_event(self, name: str, **data: Any) -> StreamEvent:
        place = {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}
        part = {"content_index": 0} if self._open == "message" else {}
        return self._event(f"response.{name}", **place, **part, **data)

    def _event(self, name: str, **data: Any) -> StreamEvent:
        self._events += 1
        return named_event(name, {"type": name, "sequence_number": self._events - 1, **data})

    def _logprobs(self, tokens: Sequence[int], scores: Sequence[TokenLogProb]) -> list[JsonObject]:
        return scored(self._client.tokenizer, tokens, scores) if self._body.logprobs else []

    def _frame(self, items: Sequence[JsonObject], text: Completion | None) -> JsonObject:
        """Return the answer with these items. text: None while the answer is still generated"""
        chat = self._body
        cut = text is not None and text.finish_reason != "stop"
        ended = "incomplete" if cut else "completed"
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": "in_progress" if text is None else ended,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "model": self._client.model,
            "output": items,
            "parallel_tool_calls": chat.parallel_tool_calls is not False,
            "store": False,
            "tool_choice": chat.tool_choice or "auto",
            "tools": chat.tools or [],
            "usage": None if text is None else _usage(text),
        }


def _message(text: str, logprobs: list[JsonObject]) -> JsonObject:
    head = {"type": "message", "id": f"msg_{uuid4().hex}", "role": "assistant"}
    return {**head, "status": "completed", "content": [_part(text, logprobs)]}


def _part(text: str, logprobs: list[JsonObject]) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _call(call_id: str, name: str, arguments: str) -> JsonObject:
    head = {"type": "function_call", "id": f"fc_{uuid4().hex}", "call_id": call_id}
    return {**head, "name": name, "arguments": arguments, "status": "completed"}


def _usage(text: Completion) -> JsonObject:
    counts = usage([text])
    return {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": {"cache_write_tokens": 0, **counts["prompt_tokens_details"]},
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counts["total_tokens"],
    }
