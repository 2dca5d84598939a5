"""Chat messages in the variants that clients of several servers send."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeAlias

from annotated_types import Len
from pydantic import BaseModel, Field, model_validator

from outrider.text.tool_calls import MAX_TOOLS, THOUGHTS, Message

MAX_BODY_BYTES = 8 * 2**20
"""Maximum bytes of a request's body."""

Text: TypeAlias = Annotated[str, Len(max_length=MAX_BODY_BYTES)]
"""Valid Unicode. Without a maximum length, pydantic would accept half of a surrogate pair."""

JsonObject: TypeAlias = dict[str, Any]

First = Field(fail_fast=True)  # reports only the first error of a long list

_UNREAD = {
    **dict.fromkeys(("image", "image_url", "input_image"), "images are"),
    **dict.fromkeys(("audio_url", "input_audio"), "audio is"),
    **dict.fromkeys(("video", "video_url"), "videos are"),
    **dict.fromkeys(("file", "input_file", "document"), "files are"),
}
"""Types of message parts that are refused, and how the error names them."""


class TextPart(BaseModel):
    """A part of a message's content: text, a refusal, or thoughts. /v1/responses uses other type
    names for text.
    """

    type: Literal["text", "input_text", "output_text", "refusal", "thinking", "redacted_thinking"]
    text: Text

    @model_validator(mode="before")
    @classmethod
    def _reads_text(cls, block: Any) -> Any:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind in _UNREAD:
            raise ValueError(f"{_UNREAD[kind]} not served: text is")
        if kind == "redacted_thinking":
            return {"type": kind, "text": ""}
        if kind in ("refusal", "thinking"):
            return {"type": kind, "text": joined_text(block.get(kind))}
        return block

    @property
    def is_thought(self) -> bool:
        return self.type.endswith("thinking")


def joined_text(content: Any) -> str:
    """Join the text of a message's parts; parts without text are skipped."""
    if isinstance(content, list):
        return "".join(str(block.get("text") or "") for block in content if isinstance(block, dict))
    return content if isinstance(content, str) else ""


class ChatMessage(BaseModel):
    """A message of a chat. Unknown fields are ignored, since servers add some to their answers."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Text | Annotated[list[TextPart], First] | None = None
    refusal: Text | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    thinking: Any = None
    tool_calls: Annotated[list[JsonObject], Len(max_length=MAX_TOOLS)] | None = None
    tool_call_id: Text | None = None
    function_call: JsonObject | None = None  # the older form of a call

    @model_validator(mode="after")
    def _has_content(self) -> Self:
        if self.content is None and self.role != "assistant":  # which may have only calls
            raise ValueError(f"a message of the {self.role} needs content")
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"the assistant makes tool_calls: got them from the {self.role}")
        return self

    @property
    def plain(self) -> Message:
        """The message with its parts joined. Role `developer` becomes `system`, its older name, and
        `function` becomes `tool`.
        """
        content = self.content or self.refusal or ""
        if not isinstance(content, str):
            content = "".join(block.text for block in content if not block.is_thought)
        role = {"developer": "system", "function": "tool"}.get(self.role, self.role)
        message: JsonObject = {"role": role, "content": content}
        if role == "tool":
            message["tool_call_id"] = self.tool_call_id or ""
        if role == "assistant":
            message |= self._thoughts
            older = [{"function": self.function_call}] if self.function_call else []
            if calls := self.tool_calls or older:
                message["tool_calls"] = calls
        return message

    @property
    def _thoughts(self) -> dict[str, str]:
        """The assistant's reasoning, from the first field or content part that has some."""
        blocks = self.content if isinstance(self.content, list) else []
        inside = "".join(block.text for block in blocks if block.is_thought)
        beside = [thought for name in THOUGHTS if isinstance(thought := getattr(self, name), str)]
        thoughts = next(filter(None, [*beside, inside]), "")
        return {THOUGHTS[0]: thoughts} if thoughts else {}
