"""Texts made on threads, for an asyncio server: each is an asynchronous iteration of its pieces,
and is counted in Prometheus metrics, with vLLM's names where they exist.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from functools import partial
from threading import Event, Lock
from typing import Any, TypeAlias, TypeVar

from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client import Counter as Total

from inference.errors import Busy, LimitExceeded, OutriderError, Unavailable
from inference.sampling import Grammar
from outrider.client.client import Client
from outrider.endpoint.grammar_turns import GrammarTurns
from outrider.text.completion import Completion, Request
from outrider.text.pieces import Piece
from outrider.text.runner import Part, Task, TextRun

RETRY_SECONDS = 1.0
"""Seconds after which a client may ask again while no text may begin."""

SHARE = 3
"""Ratio of the texts of a caller among several to those that stay free for others."""

READERS = 2
"""Prompts that are cut into tokens at the same time. Others wait, so that memory is bounded."""

Read = TypeVar("Read")
"""The result of work on prompts."""

Parts: TypeAlias = AsyncGenerator[tuple[int, Part | Completion], None]
"""Parts of several texts as they come, each with the index of its task."""


class TextRunner:
    """Makes texts with a client, up to `most` at the same time. To be used on one event loop."""

    def __init__(self, client: Client, most: int) -> None:
        self.client, self.most, self.running = client, most, 0
        self.metrics = TextMetrics(client.model)
        self.created = int(time.time())
        self._grammars = GrammarTurns()
        self._held = Counter[str]()  # texts of each caller
        self._waiting = 0  # texts that wait for their first part
        self._runs = set[TextRun[Any]]()
        self._readers = ThreadPoolExecutor(READERS, "prompt")
        self._over = ""  # the reason why no text is made any more
        self._beginning = Lock()  # of texts, and of the end of all

    def check_room(self, count: int, caller: str = "") -> None:
        """Raise LimitExceeded for more texts than are ever made at once, and Busy where there is
        no room for so many more at present.

        caller: one of several; each leaves room for others, by a threshold that moves with what is
        free (Choudhury and Hahne, 1998)
        """
        most = max(self.most * SHARE // (SHARE + 1), 1) if caller else self.most
        if count > most:
            raise LimitExceeded(
                f"{count} texts were asked for in one request: at most {most} are made at "
                "the same time"
            )
        held, free = self._held[caller] + count, self.most - self.running - count
        if free < 0 or (caller and held > max(SHARE * free, 1)):
            raise Busy(
                f"{self.running} of {self.most} texts are being made, {held - count} of them for "
                f"this caller, and {count} more were asked for: ask again later",
                RETRY_SECONDS,
            )

    async def read(self, work: Callable[[Event], Read]) -> Read:
        """Run work on prompts on a thread. Its event is set, and work that has not begun is
        dropped, when the caller is cancelled.
        """
        left = Event()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._readers, work, left)
        finally:
            left.set()

    async def run(
        self, tasks: Sequence[Task[Part]], caller: str = "", grammar: Grammar | None = None
    ) -> Parts[Part]:
        """Run tasks on threads. Yield their parts, each with the index of its task.

        grammar: of all these texts. A new one waits for the caller's turn.

        Each task ends with its Completion. Leaving the iteration ends all tasks at once. Raises
        LimitExceeded and Busy before anything begins, the error that ended a text, Unavailable for
        a text that end_all() cut, and LimitExceeded for one that there was no money for.
        """
        end_turn = await self._grammars.begin(caller, grammar)
        try:
            async with aclosing(self._run(tasks, caller)) as parts:
                async for part in parts:
                    end_turn(True)
                    yield part
        finally:
            end_turn(False)

    async def _run(self, tasks: Sequence[Task[Part]], caller: str) -> Parts[Part]:
        self.check_room(len(tasks), caller)
        loop = asyncio.get_running_loop()
        queue = asyncio.Queue[tuple[int, Part | Completion | OutriderError]]()

        def put(index: int, item: Part | Completion | OutriderError) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(deliver, index, item)

        silent = set(range(len(tasks)))  # texts without a part so far

        def deliver(index: int, item: Part | Completion | OutriderError) -> None:
            if index in silent:
                silent.discard(index)
                self._waiting -= 1
            if isinstance(item, Completion | OutriderError):
                self._count(-1, caller)
            if isinstance(item, Completion) and item.failure is None:
                self.metrics.count(item)
            queue.put_nowait((index, item))

        with self._beginning:
            if self._over:
                raise Unavailable(self._over)
            self._waiting += len(tasks)
            self._count(len(tasks), caller)
            run = TextRun(tasks, len(tasks), put)
            self._runs = {run, *(other for other in self._runs if other.is_running)}
        unfinished = len(tasks)
        try:
            while unfinished:
                index, item = await queue.get()
                if isinstance(item, OutriderError):
                    raise item
                if isinstance(item, Completion):
                    self._check(item.raise_failure())
                    unfinished -= 1
                yield index, item
        finally:
            run.end()

    def _check(self, made: Completion) -> None:
        """Refuse a part of a text that would look like all of it."""
        if made.finish_reason == "cancelled":
            raise Unavailable(self._over)
        if made.finish_reason == "spent" and not made.token_ids:
            raise LimitExceeded("no text is begun: what texts may cost (--max_usd) is spent")

    def pieces(self, requests: Sequence[Request], caller: str = "") -> Parts[Piece]:
        """Yield pieces of the texts as they come, as run() does."""
        grammar = requests[0].params.grammar if requests else None
        return self.run([partial(self.client.complete, one) for one in requests], caller, grammar)

    async def whole(self, requests: Sequence[Request], caller: str = "") -> list[Completion]:
        """The finished texts, in the order of the requests. Errors are those of pieces()."""
        found = dict[int, Completion]()
        async with aclosing(self.pieces(requests, caller)) as pieces:
            async for index, item in pieces:
                if isinstance(item, Completion):
                    found[index] = item
        return [found[index] for index in range(len(requests))]

    def end_all(self, reason: str) -> None:
        """End all texts in the making, and make none any more. Those who wait are told why."""
        with self._beginning:
            self._over = reason
            for run in self._runs:
                run.end()

    def close(self) -> None:
        """Wait for the texts that were ended."""
        self._readers.shutdown(cancel_futures=True)
        for run in self._runs:
            run.join()

    def _count(self, more: int, caller: str) -> None:
        self.running += more
        self._held[caller] += more

    def metrics_page(self) -> bytes:
        """The metrics as Prometheus reads them."""
        self.metrics.look(self.running, self._waiting, self.client.target.description.rows)
        return generate_latest(self.metrics.registry)


_SECONDS = tuple(step * 10.0**power for power in range(-3, 3) for step in (1, 2, 5))


class TextMetrics:
    """Counts finished texts. look() is for gauges."""

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry()
        self._model, label = model, ["model_name"]

        def counter(name: str, text: str) -> Total:
            return Total(name, text, label, registry=self.registry).labels(model)

        def histogram(name: str, text: str) -> Histogram:
            made = Histogram(name, text, label, registry=self.registry, buckets=_SECONDS)
            return made.labels(model)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, label, registry=self.registry).labels(model)

        self._running = gauge("vllm:num_requests_running", "Texts whose tokens arrive.")
        self._waiting = gauge("vllm:num_requests_waiting", "Texts that wait for their first token.")
        self._usage = gauge(
            "vllm:kv_cache_usage_perc", "Share of the target's rows that texts of this server use."
        )
        self._prompt = counter("vllm:prompt_tokens", "Tokens of prompts.")
        self._made = counter("vllm:generation_tokens", "Tokens made.")
        self._forwards = counter("outrider_forwards", "Forwards that texts took part in.")
        self._drafts = counter("vllm:spec_decode_num_drafts", "Forwards with candidates.")
        self._drafted = counter("vllm:spec_decode_num_draft_tokens", "Candidates computed.")
        self._accepted = counter("vllm:spec_decode_num_accepted_tokens", "Candidates accepted.")
        self._usd = counter("outrider_cost_usd", "US dollars of texts, as far as known.")
        self._first = histogram("vllm:time_to_first_token_seconds", "Time to first token.")
        self._each = histogram("vllm:time_per_output_token_seconds", "Time per later token.")
        self._whole = histogram("vllm:e2e_request_latency_seconds", "Time of a whole text.")
        self._ended = Total(
            "vllm:request_success",
            "Texts by why they ended.",
            ["model_name", "finished_reason"],
            registry=self.registry,
        )

    def count(self, done: Completion) -> None:
        """Count a finished text."""
        tokens = len(done.token_ids)
        self._ended.labels(self._model, done.finish_reason).inc()
        self._prompt.inc(done.prompt_tokens)
        self._made.inc(tokens)
        self._forwards.inc(done.traffic.forwards)
        self._drafts.inc(done.traffic.drafted)
        self._drafted.inc(done.num_draft_tokens)
        self._accepted.inc(done.num_accepted_tokens)
        self._usd.inc(done.cost.value or 0.0)
        self._whole.observe(done.seconds)
        if tokens:
            self._first.observe(done.time_to_first_token)
        if tokens > 1:
            self._each.observe((done.seconds - done.time_to_first_token) / (tokens - 1))

    def look(self, texts: int, waiting: int, rows: int) -> None:
        """Set the gauges.

        texts: in the making, the waiting ones among them
        rows: of the target, each with the cache of a text
        """
        self._running.set(texts - waiting)
        self._waiting.set(waiting)
        self._usage.set(min((texts - waiting) / max(rows, 1), 1.0))
