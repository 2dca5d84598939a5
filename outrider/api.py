"""The Python interface: the engine that `outrider.connect()` returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from threading import Event
from typing import Any, Unpack, overload

from inference.command import check_names, logged, messages_to
from outrider.client.client import open_client
from outrider.keywords import TextKeywords
from outrider.options.roles import SharedClientRole
from outrider.text.completion import Completion, Request, silent
from outrider.text.parameters import Parameters
from outrider.text.prompts import Prompt, make_request
from outrider.text.runner import CompletionStream, TextRun
from outrider.text.tool_calls import Message


class Engine:
    """A context manager: a connection to a target, with a draft that stays loaded.

    Any number of threads may use it. Concurrent requests share the draft. Messages go to the
    logger `outrider`.
    """

    def __init__(self, options: SharedClientRole) -> None:
        self._stack, self._rows = ExitStack(), options.batch
        self._stack.enter_context(messages_to(logged))
        try:
            self._client = self._stack.enter_context(open_client(options))
            self._client.load(self._rows)
            self._client.wait()
        except BaseException:
            self._stack.close()
            raise

    def __repr__(self) -> str:
        return f"Engine(model={self.model!r}, draft={self.draft!r})"

    @property
    def model(self) -> str:
        """The target's name."""
        return self._client.model

    @property
    def draft(self) -> str | None:
        """The draft's name; None without a draft."""
        return self._client.draft

    @overload
    def generate(self, prompt: Prompt, **parameters: Unpack[TextKeywords]) -> Completion: ...

    @overload
    def generate(
        self, prompt: list[str] | tuple[str, ...], **parameters: Unpack[TextKeywords]
    ) -> list[Completion]: ...

    def generate(
        self, prompt: Prompt | list[str] | tuple[str, ...], **parameters: Unpack[TextKeywords]
    ) -> Completion | list[Completion]:
        """Generate a completion of a prompt, or of each prompt in a list.

        prompt: text to continue, messages of a chat, or token ids; or a list of strings, whose
            completions are generated concurrently and returned in the same order
        parameters: fields of outrider.Parameters, such as max_tokens, temperature, seed, stop; in
            a list, prompt i uses seed + i

        Raises InvalidRequest for a prompt or a parameter that is not allowed, and Unavailable if
        the target is gone for good.
        """
        shared = _parameters(parameters)
        if isinstance(prompt, list | tuple) and prompt and isinstance(prompt[0], str):
            requests = [self._request(text, shared, index) for index, text in enumerate(prompt)]
            return self._generate_all(requests)
        request = self._request(prompt, shared)
        return self._client.complete(request, silent, Event()).raise_failure()

    def stream(self, prompt: Prompt, **parameters: Unpack[TextKeywords]) -> CompletionStream:
        """Generate a completion, and iterate over its pieces as they arrive.

        Arguments and errors are those of generate() for a single prompt. To end early, close() the
        stream or leave its context: generation stops at once.
        """
        request = self._request(prompt, _parameters(parameters))
        return CompletionStream(partial(self._client.complete, request))

    def chat(self, messages: Sequence[Message], **parameters: Unpack[TextKeywords]) -> Completion:
        """Answer a chat, using the model's own template. Otherwise like generate()."""
        return self.generate(messages, **parameters)

    def close(self) -> None:
        """Close the connection and release the draft. Idempotent. No request may be running."""
        self._stack.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _request(self, prompt: Any, parameters: Parameters, index: int = 0) -> Request:
        """Return the request for a prompt; `index` is added to the seed, if one is set."""
        if parameters.seed is not None:
            parameters = replace(parameters, seed=parameters.seed + index)
        return make_request(self._client.text_model, prompt, parameters, index)

    def _generate_all(self, requests: Sequence[Request]) -> list[Completion]:
        """Run the requests, as many at a time as the draft has rows."""
        tasks = [partial(self._client.complete, request) for request in requests]
        with TextRun(tasks, min(self._rows, len(tasks))) as run:
            return [done.raise_failure() for done in run.completions()]


def _parameters(keywords: Mapping[str, Any]) -> Parameters:
    """Return the parameters. Raises InvalidRequest for an unknown name or a bad value."""
    check_names(keywords, TextKeywords, "generate()")
    return Parameters(**keywords)
