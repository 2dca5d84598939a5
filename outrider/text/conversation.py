"""Conversations, and the JSON files that store them. The chat page reads and writes the same
format.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from inference.errors import InvalidRequest
from inference.files.json_file import Json, read_json
from inference.files.writing import write_whole
from outrider.text.tool_calls import Message

FORMAT = "outrider-conversation-1"
"""The value of a file's field `format`."""

ROLES = ("system", "user", "assistant")


@dataclass
class Conversation:
    """Messages in order; the system message, if any, is the first."""

    messages: list[Message] = field(default_factory=list)

    @property
    def system(self) -> str:
        """The system message; empty if there is none."""
        first = self.messages[0] if self.messages else {"role": "user"}
        return str(first["content"]) if first["role"] == "system" else ""

    def say(self, role: str, content: str) -> None:
        """Add a message. A system message replaces the earlier one, or removes it if empty."""
        if role != "system":
            self.messages.append({"role": role, "content": content})
            return
        rest = [message for message in self.messages if message["role"] != "system"]
        first: list[Message] = [{"role": role, "content": content}] if content else []
        self.messages = [*first, *rest]

    def take_back(self) -> None:
        """Remove the last message."""
        del self.messages[-1:]

    def reset(self) -> None:
        """Remove all messages but the system message."""
        del self.messages[1 if self.system else 0 :]

    def write(self, path: Path) -> None:
        """Write the conversation to a file. Raises InvalidRequest if the file cannot be written."""
        text = json.dumps({"format": FORMAT, "messages": self.messages}, indent=1)
        try:
            write_whole(path, text + "\n")
        except OSError as error:
            raise InvalidRequest(f"{path} cannot be written: {error}") from error

    @classmethod
    def read(cls, path: Path) -> Conversation:
        """Read a conversation from a file, whose other fields are ignored. Raises InvalidRequest if
        the file is not valid.
        """
        file = read_json(path, InvalidRequest)
        if file.field("format").value != FORMAT:
            file.field("format").refuse(FORMAT)
        return cls([_read_message(message) for message in file.field("messages").items()])


def _read_message(message: Json) -> Message:
    role, content = message.field("role"), message.field("content")
    if role.value not in ROLES:
        role.refuse(" or ".join(ROLES))
    if not isinstance(content.value, str):
        content.refuse("a text")
    return {"role": role.value, "content": content.value}
