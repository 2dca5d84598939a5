"""The target that the server uses. It may be changed, stopped and started while requests come."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from inference.errors import OutriderError, Unavailable
from outrider.client import open_client
from outrider.endpoint.failures import ApiError
from outrider.endpoint.texts import Texts
from outrider.options.roles import ServeRole

RETRY_SECONDS = 2.0
"""When to ask again after a target was not there."""


class Desk:
    """Holds a client of the target that is in use, or the reason why there is none.

    options: what the server was started with; the page's settings change a copy of them
    """

    def __init__(self, options: ServeRole) -> None:
        self.options, self._first = options, options
        self.texts: Texts | None = None
        self.reason = "no target was started"
        self.wanted = True  # whether requests may start the target again
        self._stack, self._secrets = ExitStack(), ExitStack()
        self._changing = threading.Lock()

    def open(self, settings: Mapping[str, Any] | None = None) -> Texts:
        """Connect and load the draft, in place of what is in use. Blocks.

        settings: options that differ from the server's own; None keeps those in use

        Raises the error that prevents it, and keeps its words as the reason.
        """
        with self._changing:
            if settings is None and self.texts is not None:
                return self.texts
            self._close("another target is being started")
            try:
                if settings is not None:
                    self._secrets.close()
                    self.options = self._first.but(**self._files(settings))
                with ExitStack() as stack:
                    drafts = not self.options.target_only
                    client = stack.enter_context(open_client(self.options, drafts=drafts))
                    client.load(self.options.batch)
                    texts = Texts(client, self.options.most_texts)
                    stack.callback(texts.close)
                    self._stack.push(stack.pop_all())
            except OutriderError as error:
                self.reason = str(error)
                raise
            self.texts, self.wanted, self.reason = texts, True, ""
            return texts

    def close(self, reason: str = "the target was stopped", *, wanted: bool = False) -> None:
        """End all texts and let the draft go. Requests are refused with the reason."""
        with self._changing:
            self.wanted = wanted
            self._close(reason)
            self._secrets.close()

    async def get(self) -> Texts:
        """What texts are made with. A target that was not there is looked for again.

        Raises ApiError without one.
        """
        texts = self.texts
        if texts is not None:
            return texts
        if self.wanted and not self._changing.locked():
            try:
                return await asyncio.to_thread(self.open)
            except Unavailable:
                pass  # the reason is told below
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
            texts.end_all()
        self._stack.close()

    def _files(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings, with secrets that came as text in private files until close()."""
        changed = dict(settings)
        secrets = {"token_file": changed.pop("token", ""), "tls_ca": changed.pop("ca", "")}
        if not any(secrets.values()):
            return changed
        directory = Path(tempfile.mkdtemp(prefix="outrider-"))  # readable by this user alone
        self._secrets.callback(shutil.rmtree, directory, ignore_errors=True)
        for flag, text in secrets.items():
            if text:
                path = directory / flag
                path.write_text(text.strip() + "\n", encoding="utf-8")
                changed[flag] = str(path)
        return changed
