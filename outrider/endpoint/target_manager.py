"""Manages the target in use, which may be changed, stopped and started while the server runs."""

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
from outrider.options.network import SYSTEM
from outrider.options.roles import ServeRole

RETRY_SECONDS = 2.0
"""Seconds in Retry-After while no target is connected."""

MAX_REQUESTS = 64
"""Default maximum of concurrent requests."""


class TargetSettings(BaseModel):
    """A target chosen on the page. Empty fields keep the server's own options."""

    model_config = ConfigDict(extra="forbid")

    address: Text
    model_name: Text = ""
    draft: Text = ""  # as --draft; if the server has no draft, --draft's default
    draft_model: Text = ""  # directory or hub name
    tls: bool = False
    ca: Text = ""  # certificate of the authority, as PEM text
    token: Text = ""


class TargetManager:
    """Holds the client of the target in use, or the reason why there is no target.

    options: options that the server was started with; the page's settings change a copy
    max_requests: maximum concurrent requests; further ones get status 429
    """

    def __init__(self, options: ServeRole, max_requests: int = MAX_REQUESTS) -> None:
        options = options.replace(target=None)  # the page may choose another target
        self.options, self._first = options, options
        self._max_requests = max_requests
        self.texts: TextRunner | None = None
        self.reason = "no target was started"
        self.wanted = True  # whether requests may start the target again
        self._opening: asyncio.Future[TextRunner] | None = None  # shared by all waiting requests
        self._stack, self._secrets = ExitStack(), ExitStack()
        self._changing, self._given_up = threading.Lock(), threading.Event()

    def open(self, settings: TargetSettings | None = None) -> TextRunner:
        """Connect to the target and load the draft, replacing those in use. Blocks.

        settings: another target; None to use the current one, and connect if not connected

        Raises the error that connecting or loading raised, and stores its message as the reason.
        """
        if settings is not None:
            self._given_up.set()  # give up connecting to the earlier target
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
        """End all running requests and release the draft. Later requests are refused with `reason`.

        A pending attempt to connect is abandoned.
        """
        self._given_up.set()
        with self._changing:
            self.wanted = False
            self._close(reason)
            self._secrets.close()

    async def get(self) -> TextRunner:
        """Return the object that generates text at the target; connect first if not connected.

        Raises ApiError if no target answers.
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
            pass  # reported below as a server error
        raise ApiError(
            503,
            f"there is no target: {self.reason}",
            code="target_unavailable",
            retry_after=RETRY_SECONDS,
        )

    def _close(self, reason: str) -> None:
        texts, self.texts, self.reason = self.texts, None, reason
        if texts is not None:
            texts.end_all(reason)
        self._stack.close()

    def _take(self, settings: TargetSettings) -> None:
        """Replace the settings in use. Invalid settings change nothing."""
        with ExitStack() as stack:
            options = self._first.replace(**self._changes(settings, stack))
            secrets = stack.pop_all()
        self._close("another target is being started")
        self._secrets.close()
        self.options, self._secrets, self.wanted = options, secrets, True

    def _changes(self, settings: TargetSettings, stack: ExitStack) -> dict[str, Any]:
        """Return the options that the settings change. Their secrets are written to private files,
        which exist until the stack closes. The server's own secrets are kept for its target only.
        """
        started = self._first
        changes: dict[str, Any] = {"preset": None, "target_host": settings.address}
        if started.replace(target_host=settings.address).endpoints != started.endpoints:
            changes |= dict.fromkeys(("token_file", "tls_ca", "tls_cert", "tls_key"))
        changes |= settings.model_dump(include={"model_name", "draft_model"}, exclude_defaults=True)
        if settings.tls and not settings.ca:
            changes["tls_ca"] = SYSTEM
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
