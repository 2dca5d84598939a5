"""Texts that the endpoint's runner generates in a client's process; callers may disconnect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING

from inference.errors import Busy, OutriderError
from inference.text.stream import TextStream
from outrider.endpoint.text_runner import TextRunner
from outrider.text.completion import Completion
from tests.simulate.kernel import kernel
from tests.simulate.threads import run_on_loop

if TYPE_CHECKING:
    from tests.simulate.client_process import Text

MOST = 2
"""Texts at the same time."""


class Letters:
    """A tokenizer with a letter for each token."""

    template = ""

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(0x4E00 + one) for one in ids)

    def stream(self, prompt: Sequence[int]) -> TextStream:
        return TextStream(self, prompt)

    def after(self, _before: int | None, token: int) -> bytes:
        return self.decode([token]).encode()


LETTERS = Letters()


class Endpoint:
    """An endpoint's loop, and its callers. make: makes a text, as a Task of the runner does"""

    def __init__(self, make: Callable[..., Completion], forward: float) -> None:
        self._make, self._forward = make, forward

    def serve(self, texts: Sequence[Text], *, at_once: bool) -> None:
        """Let callers ask for these texts, and end when nobody wants anything."""
        runner = TextRunner(SimpleNamespace(model="exact"), MOST)  # type: ignore[arg-type]
        run_on_loop(self._serve(runner, texts, at_once))
        runner.close()

    async def _serve(self, runner: TextRunner, texts: Sequence[Text], at_once: bool) -> None:
        together = len(texts) if at_once else 1
        for first in range(0, len(texts), together):
            asked = texts[first : first + together]
            await asyncio.gather(*(self._call(runner, text) for text in asked))
        while runner.running:  # noqa: ASYNC110  # of those who have left
            await asyncio.sleep(0.1)

    async def _call(self, runner: TextRunner, text: Text) -> None:
        """A caller, who leaves after the time of some forwards where the plan says so."""
        leaves = text.plan.leaves
        with suppress(TimeoutError):
            await asyncio.wait_for(
                self._read(runner, text), None if leaves is None else leaves * self._forward
            )
        text.outcome = text.outcome or ("" if text.began else "left")  # it was never begun

    async def _read(self, runner: TextRunner, text: Text) -> None:
        caller = f"caller {text.plan.seed % 2}"
        while True:
            try:
                runner.check_room(1, caller)
                break
            except Busy as busy:
                await asyncio.sleep(busy.retry_after)
        seen = ""
        try:
            async with aclosing(runner.run([partial(self._make, text)], caller)) as parts:
                async for _, part in parts:
                    seen += part.text if not isinstance(part, Completion) else ""
        except OutriderError as error:
            if str(error) != text.error:
                kernel().crashes.append(f"{text} ends with {text.outcome}, and is told {error}")
        said = LETTERS.decode(text.tokens)  # a stop id is not shown
        if runner.running > MOST or said[: len(seen)] != seen or len(said) > len(seen) + 1:
            kernel().crashes.append(f"{text} is {text.tokens}, and its caller reads {seen}")
