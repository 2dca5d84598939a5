"""The Python interface: `outrider.connect()`, and what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from threading import Event
from typing import Any

from outrider.client.client import open_client
from outrider.options.roles import SharedClientRole
from outrider.terminal.live_text import silent
from outrider.text.completion import Completion
from outrider.text.parameters import Parameters
from outrider.text.prompts import Prompt, make_request
from outrider.text.runner import CompletionStream
from outrider.text.tool_calls import Message


class Engine:
    """A connection to a target, with a draft that stays loaded. A context manager.

    Any number of threads may call it. Texts that are made at the same time share the draft.
    """

    def __init__(self, options: SharedClientRole) -> None:
        self._stack = ExitStack()
        self._client = self._stack.enter_context(open_client(options))
        try:
            self._client.load(options.batch)
            self._client.wait()
        except BaseException:
            self._stack.close()
            raise

    @property
    def model(self) -> str:
        """The target's name."""
        return self._client.model

    @property
    def draft(self) -> str | None:
        """The draft's name; None without a draft."""
        return self._client.draft

    def generate(self, prompt: Prompt, **parameters: Any) -> Completion:
        """Make a text.

        prompt: text to go on with, messages of a chat, or token ids
        parameters: fields of outrider.Parameters, such as max_tokens, temperature, seed, stop

        Raises InvalidRequest for a prompt or a value that is not allowed, and Unavailable when the
        target went away for good.
        """
        request = make_request(self._client, prompt, Parameters(**parameters))
        return self._client.complete(request, silent, Event()).raise_failure()

    def stream(self, prompt: Prompt, **parameters: Any) -> CompletionStream:
        """Make a text, and iterate over its pieces while it is made.

        Arguments and errors are those of generate(). Leave the iteration early with close(), or by
        leaving the stream's context: the text ends at once.
        """
        request = make_request(self._client, prompt, Parameters(**parameters))
        return CompletionStream(partial(self._client.complete, request))

    def chat(self, messages: Sequence[Message], **parameters: Any) -> Completion:
        """Answer a chat with the model's own template. Otherwise like generate()."""
        return self.generate(messages, **parameters)

    def close(self) -> None:
        """End the connection and let the draft go. Idempotent. No text may be in the making."""
        self._stack.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
