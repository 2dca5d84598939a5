"""The target that the server uses. It may be changed, stopped and started while serving."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import BaseModel, ConfigDict

from inference.errors import OutriderError, Unavailable
from outrider.client.client import open_client
from outrider.endpoint.interfaces.chat_messages import Text
from outrider.endpoint.interfaces.failures import ApiError
from outrider.endpoint.text_runner import TextRunner
from outrider.options.draft_flags import DEFAULT_SOURCES, NONE
from outrider.options.roles import ServeRole

RETRY_SECONDS = 2.0
"""Retry-After while there is no target, in seconds."""

MAX_REQUESTS = 64
"""Default of the maximum of concurrent texts."""


class TargetSettings(BaseModel):
    """A target that the page chooses. Empty fields keep the server's own options."""

    model_config = ConfigDict(extra="forbid")

    address: Text
    model_name: Text = ""
    draft: Text = ""  # as --draft; where the server has none, its default
    draft_model: Text = ""  # directory or hub name
    tls: bool = False
    ca: Text = ""  # the authority's certificate, as PEM text
    token: Text = ""


class TargetManager:
    """Holds a client of the target that is in use, or the reason why there is none.

    options: what the server was started with; the page's settings change a copy of them
    max_requests: maximum concurrent texts; further requests get 429
    """

    def __init__(self, options: ServeRole, max_requests: int = MAX_REQUESTS) -> None:
        options = options.replace(target=None)  # the page may name another place
        self.options, self._first = options, options
        self._max_requests = max_requests
        self.texts: TextRunner | None = None
        self.reason = "no target was started"
        self.wanted = True  # whether requests may start the target again
        self._opening: asyncio.Future[TextRunner] | None = None  # which all requests wait for
        self._stack, self._secrets = ExitStack(), ExitStack()
        self._changing, self._given_up = threading.Lock(), threading.Event()

    def open(self, settings: TargetSettings | None = None) -> TextRunner:
        """Connect and load the draft, in place of what is in use. Blocks.

        settings: another target; None keeps the one in use

        Raises the error that prevents it, and keeps its words as the reason.
        """
        if settings is not None:
            self._given_up.set()  # another target is wanted
        with self._changing:
            self._given_up.clear()
            if settings is not None:
                self._take(settings)
            elif self.texts is not None:
                return self.texts
            elif not self.wanted:
                raise Unavailable(self.reason)
            try:
                with ExitStack() as stack:
                    client = stack.enter_context(open_client(self.options, given_up=self._given_up))
                    client.load(self.options.batch)
                    texts = TextRunner(client, self._max_requests)
                    stack.callback(texts.close)
                    self._stack.push(stack.pop_all())
            except OutriderError as error:
                self.reason = str(error)
                raise
            self.texts, self.reason = texts, ""
            return texts

    def close(self, reason: str = "the target was stopped") -> None:
        """End all texts and release the draft. Requests are refused with the reason.

        A target that is being looked for is not waited for.
        """
        self._given_up.set()
        with self._changing:
            self.wanted = False
            self._close(reason)
            self._secrets.close()

    async def get(self) -> TextRunner:
        """The runner of texts. Connects again if there was no target.

        Raises ApiError without one.
        """
        texts = self.texts
        if texts is not None:
            return texts
        opening = self._opening if self._opening and not self._opening.done() else None
        if opening is None and self.wanted and not self._changing.locked():
            opening = self._opening = asyncio.ensure_future(asyncio.to_thread(self.open))
        try:
            if opening is not None:
                return await asyncio.shield(opening)
        except OutriderError:
            pass  # reported below; not the request's fault
        raise ApiError(
            503,
            f"there is no target: {self.reason}",
            "server_error",
            code="target_unavailable",
            retry_after=RETRY_SECONDS,
        )

    def _close(self, reason: str) -> None:
        texts, self.texts, self.reason = self.texts, None, reason
        if texts is not None:
            texts.end_all(reason)
        self._stack.close()

    def _take(self, settings: TargetSettings) -> None:
        """Use these settings from now on. Invalid settings change nothing."""
        with ExitStack() as stack:
            options = self._first.replace(**self._changes(settings, stack))
            secrets = stack.pop_all()
        self._close("another target is being started")
        self._secrets.close()
        self.options, self._secrets, self.wanted = options, secrets, True

    def _changes(self, settings: TargetSettings, stack: ExitStack) -> dict[str, Any]:
        """The options that the settings change. Secrets are in private files until the stack
        closes. Those of the server itself are for its own target only.
        """
        started = self._first.connection
        changes: dict[str, Any] = {"preset": None, "target_host": settings.address}
        if started.replace(target_host=settings.address).endpoints != started.endpoints:
            changes |= dict.fromkeys(("token_file", "tls_ca", "tls_cert", "tls_key"))
        changes |= settings.model_dump(include={"model_name", "draft_model"}, exclude_defaults=True)
        if settings.tls and not settings.ca:
            changes["tls"] = True
        if sources := settings.draft or (DEFAULT_SOURCES if self._first.draft == NONE else ""):
            changes["draft"] = sources
        for flag, text in (("token_file", settings.token), ("tls_ca", settings.ca)):
            if text:
                directory = stack.enter_context(TemporaryDirectory(prefix="outrider-"))  # mode 700
                path = Path(directory) / flag
                path.touch(mode=0o600)
                path.write_text(text.strip() + "\n", encoding="utf-8")
                changes[flag] = str(path)
        return changes
