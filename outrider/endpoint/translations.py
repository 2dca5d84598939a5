"""Requests of Anthropic's /v1/messages and OpenAI's /v1/responses as requests for a chat.

Fields that are not named here are those of a chat. No answer is stored: each request sends the
whole conversation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from annotated_types import Len
from pydantic import BaseModel, ConfigDict

from outrider.endpoint.chat_messages import JsonObject, Text, joined_text
from outrider.endpoint.failures import ApiError
from outrider.endpoint.requests import MOST_MESSAGES, ChatRequest


class MessagesRequest(BaseModel):
    """A request for the next message of a conversation. Other fields are those of a chat."""

    model_config = ConfigDict(extra="allow")

    messages: Annotated[list[JsonObject], Len(max_length=MOST_MESSAGES)]
    system: Text | list[JsonObject] | None = None
    tool_choice: JsonObject | None = None
    stop_sequences: list[Text] | None = None
    output_config: JsonObject | None = None  # its `format` is the form of the answer

    def chat(self) -> ChatRequest:
        """The request as one for a chat. An answer that was begun already is continued."""
        begun = bool(self.messages) and self.messages[-1].get("role") == "assistant"
        first = [{"role": "system", "content": self.system}] if self.system else []
        choice = self.tool_choice or {}
        return ChatRequest.model_validate(
            {
                **(self.model_extra or {}),
                "n": 1,
                "logprobs": None,
                "messages": [
                    *first,
                    *(one for turn in self.messages for one in _turn_messages(turn)),
                ],
                "response_format": (self.output_config or {}).get("format"),
                "stop": self.stop_sequences,
                "tool_choice": self.tool_choice,
                "continue_final_message": begun,
                "parallel_tool_calls": not choice.get("disable_parallel_tool_use"),
            }
        )


def _turn_messages(turn: JsonObject) -> Iterable[JsonObject]:
    """A turn as messages of a chat: results of calls are messages of their own, before the text."""
    content = turn.get("content")
    if not isinstance(content, list):
        yield {"role": turn.get("role"), "content": content}
        return
    said, calls = list[Any](), list[JsonObject]()
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_result":
            result = block.get("content") or ""
            yield {"role": "tool", "content": result, "tool_call_id": block.get("tool_use_id")}
        elif kind == "tool_use":
            called = {"name": block.get("name"), "arguments": block.get("input")}
            calls.append({"id": block.get("id"), "function": called})
        else:
            said.append(block)
    if said or calls:
        yield {"role": turn.get("role"), "content": said, "tool_calls": calls}


LOGPROBS = "message.output_text.logprobs"
"""Name in `include` that asks for log-probabilities."""


class ResponseRequest(BaseModel):
    """A request for the answer to a conversation. Other fields are those of a chat."""

    model_config = ConfigDict(extra="allow")

    input: Text | Annotated[list[JsonObject], Len(max_length=MOST_MESSAGES)]
    instructions: Text | None = None
    text: JsonObject | None = None  # its `format` is the form of the answer
    max_output_tokens: int | None = None
    include: list[str] | None = None  # LOGPROBS are told, other parts are never there

    def chat(self) -> ChatRequest:
        """The request as one for a chat."""
        first = [{"role": "system", "content": self.instructions}] if self.instructions else []
        said = [{"role": "user", "content": self.input}] if isinstance(self.input, str) else None
        more = self.model_extra or {}
        return ChatRequest.model_validate(
            {
                **more,
                "n": 1,
                "messages": [*first, *(said or _item_messages(self.input))],
                "max_completion_tokens": self.max_output_tokens,
                "response_format": (self.text or {}).get("format"),
                "verbosity": (self.text or {}).get("verbosity"),
                "logprobs": LOGPROBS in (self.include or ()) or bool(more.get("top_logprobs")),
            }
        )


def _item_messages(items: Iterable[Any]) -> list[JsonObject]:
    """Items as messages of a chat. Thoughts belong to what the assistant says behind them, and
    calls to what it said before them.
    """
    messages = list[JsonObject]()
    for item in items:
        kind = item.get("type") or "message"
        if kind == "reasoning":
            thoughts = joined_text(item.get("content")) or joined_text(item.get("summary"))
            if thoughts:  # others are encrypted
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
            said = {"role": item.get("role"), "content": item.get("content")}
            thought = messages[-1:] if said["role"] == "assistant" else []
            if thought and thought[0].keys() == {"role", "reasoning_content"}:
                thought[0].update(said)
            else:
                messages.append(said)
        else:
            raise ApiError(400, f"items of type {kind} are not served", param="input")
    return messages
