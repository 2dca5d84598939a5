"""Anthropic's /v1/messages, translated to and from a chat: blocks of text, and tool uses.

Fields that this module does not define are handled as in a chat. No answer is stored: each request
sends the whole conversation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any
from uuid import uuid4

from annotated_types import Len
from pydantic import BaseModel, ConfigDict

from outrider.client.client import Client
from outrider.endpoint.interfaces.answering import Answer, StreamEvent, named_event
from outrider.endpoint.interfaces.chat_answers import finish_reason
from outrider.endpoint.interfaces.chat_messages import JsonObject, Text
from outrider.endpoint.interfaces.failures import ApiError
from outrider.endpoint.interfaces.requests import MAX_MESSAGES, ChatRequest
from outrider.text.completion import Completion, Request
from outrider.text.json_values import read_object
from outrider.text.pieces import Piece


class MessagesRequest(BaseModel):
    """A request for a conversation's next message. Other fields are handled as in a chat."""

    model_config = ConfigDict(extra="allow")

    messages: Annotated[list[JsonObject], Len(max_length=MAX_MESSAGES)]
    system: Text | list[JsonObject] | None = None
    tool_choice: JsonObject | None = None
    stop_sequences: list[Text] | None = None
    output_config: JsonObject | None = None  # `format`: the schema of the answer

    def chat(self) -> ChatRequest:
        """Convert the request to a chat's. If the last message is the assistant's, continue it."""
        begun = bool(self.messages) and self.messages[-1].get("role") == "assistant"
        first = [{"role": "system", "content": self.system}] if self.system else []
        turns = [message for turn in self.messages for message in _turn_messages(turn)]
        fields = {
            "n": 1,
            "logprobs": None,
            "messages": [*first, *turns],
            "response_format": (self.output_config or {}).get("format"),
            "stop": self.stop_sequences,
            "tool_choice": self.tool_choice,
            "continue_final_message": begun,
            "parallel_tool_calls": not (self.tool_choice or {}).get("disable_parallel_tool_use"),
        }
        return ChatRequest.model_validate((self.model_extra or {}) | fields)


def _turn_messages(turn: JsonObject) -> Iterable[JsonObject]:
    """Yield a turn as messages of a chat: first the results of calls, each in its own message."""
    content = turn.get("content")
    if not isinstance(content, list):
        yield {"role": turn.get("role"), "content": content}
        return
    blocks, calls = list[Any](), list[JsonObject]()
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_result":
            result = block.get("content") or ""
            yield {"role": "tool", "content": result, "tool_call_id": block.get("tool_use_id")}
        elif kind == "tool_use":
            called = {"name": block.get("name"), "arguments": block.get("input")}
            calls.append({"id": block.get("id"), "function": called})
        else:
            blocks.append(block)
    if blocks or calls:
        yield {"role": turn.get("role"), "content": blocks, "tool_calls": calls}


class MessageWriter(Answer):
    """Writes an output as blocks of text and of tool uses."""

    def __init__(self, client: Client, chat: ChatRequest, requests: Sequence[Request]) -> None:
        super().__init__(client, chat, requests)
        self._id = f"msg_{uuid4().hex}"
        self._blocks, self._open = 0, ""  # number of blocks so far; type of the open block

    def whole(self, texts: Sequence[Completion]) -> JsonObject:
        (text,) = texts
        blocks = [{"type": "text", "text": text.text}] if text.text else []
        uses = [
            _use(call.id, call.name, read_object(call.arguments) or {}) for call in text.tool_calls
        ]
        return self._frame([*blocks, *uses]) | _stop_reason(text) | {"usage": _usage(text)}

    def begin(self) -> Iterable[StreamEvent]:
        counts = {"input_tokens": len(self._requests[0].ids), "output_tokens": 0}
        message = self._frame([]) | {"stop_reason": None, "stop_sequence": None, "usage": counts}
        yield _event("message_start", message=message)

    def add(self, _index: int, piece: Piece) -> Iterable[StreamEvent]:
        if piece.call is None:
            if self._open != "text":
                yield from self._begin_block({"type": "text", "text": ""})
            yield self._delta(type="text_delta", text=piece.text)
            return
        if piece.call.name:
            yield from self._begin_block(_use(piece.call.id, piece.call.name, {}))
        yield self._delta(type="input_json_delta", partial_json=piece.call.arguments)

    def finish(self, _index: int, text: Completion) -> Iterable[StreamEvent]:
        yield from self._end_block()
        yield _event("message_delta", delta=_stop_reason(text), usage=_usage(text))

    def end(self, _texts: Sequence[Completion]) -> Iterable[StreamEvent]:
        yield _event("message_stop")

    def fail(self, error: ApiError) -> Iterable[StreamEvent]:
        yield named_event("error", error.of_messages)

    def _begin_block(self, block: JsonObject) -> Iterable[StreamEvent]:
        yield from self._end_block()
        self._blocks, self._open = self._blocks + 1, block["type"]
        yield _event("content_block_start", index=self._blocks - 1, content_block=block)

    def _end_block(self) -> Iterable[StreamEvent]:
        if self._open:
            self._open = ""
            yield _event("content_block_stop", index=self._blocks - 1)

    def _delta(self, **delta: str) -> StreamEvent:
        return _event("content_block_delta", index=self._blocks - 1, delta=delta)

    def _frame(self, content: Sequence[JsonObject]) -> JsonObject:
        head = {"id": self._id, "type": "message", "role": "assistant"}
        return {**head, "model": self._client.model, "content": content}


def _event(name: str, **data: Any) -> StreamEvent:
    return named_event(name, {"type": name, **data})


def _use(call_id: str, name: str, arguments: Any) -> JsonObject:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def _stop_reason(text: Completion) -> JsonObject:
    reasons = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
    by_string = text.stopped_by and not text.tool_calls
    reason = "stop_sequence" if by_string else reasons[finish_reason(text)]
    return {"stop_reason": reason, "stop_sequence": text.stopped_by or None}


def _usage(text: Completion) -> dict[str, int]:
    """Count tokens: of the prompt without cached ones, of the cached ones, and of the output."""
    cached = min(text.traffic.reused_tokens, text.prompt_tokens)
    return {
        "input_tokens": text.prompt_tokens - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": len(text.token_ids),
    }
