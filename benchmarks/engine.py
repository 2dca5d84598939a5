"""What the engine costs outside the model, by sessions in one forward; and what one forward for all brings with a real model.

    python -m benchmarks.engine [--sessions 1,8,32] [--json FILE]
    python -m benchmarks.engine --model DIR [--dtype bfloat16] [--threads 2] [--sessions 1,4,8] [--json FILE]

Without --model: median milliseconds a forward of trees of 16 nodes, with a model that chooses at once, rows of 2,048 slots and 600
or more committed tokens. "engine" is what the clock says between forwards, "engine cpu" what its thread computed, waking and choosing
whom to serve included; "padding" is what a backend adds on the host; "asking" is a tree's way in, on the threads of those who ask.

With --model: tokens a second of all sessions, trees in one forward against one row a forward, in turn. Texts are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from benchmarks.scripted import ScriptedDraft, Text, say_texts
from inference.backends import Model, Segment
from inference.backends.batch import Shape, check_rows, pad
from inference.engine import Engine, Forward, Observer
from inference.policy import Ranked
from inference.sampling import SamplingParams
from inference.session import Answer, Session
from inference.tree import IntArray, TokenTree
from outrider.models import find_checkpoint, load_model
from outrider.options import Options

NODES, CAPACITY, PROMPT = 16, 2048, 600
VOCABULARY = 100_000
FORWARDS = 120
"""Of one measurement; every session gets 3 tokens of each on average."""

NAMES = ("read", "write", "copy", "move", "remove", "parse", "count", "compress")
SPOKEN = 64
"""Tokens of a real model's texts, prompt included."""


class NextToken:
    """A Model that chooses token + 1 after every token, in no time but that of padding its call."""

    capacity, max_nodes, copies_rows = CAPACITY, 256, True

    def __init__(self, rows: int) -> None:
        self.rows, self.cpu_seconds = rows, 0.0

    def choose(self, segments: Sequence[Segment]) -> list[IntArray]:
        start = time.thread_time()
        check_rows(segments)
        pad(segments, Shape.least(segments), CAPACITY)
        chosen = [(segment.tokens[segment.pick] + 1) % VOCABULARY for segment in segments]
        self.cpu_seconds += time.thread_time() - start
        return chosen

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        raise NotImplementedError

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        """As one graph for trees and one for prompts: a tree that is cut costs the same, so none is."""
        return self.rows, NODES if nodes <= NODES else self.max_nodes

    def copy_row(self, source: int, target: int, slots: int) -> None:
        """There are no keys."""


class Overhead(Observer):
    """Sessions that ask again as soon as they are answered, on the engine's own thread, for FORWARDS forwards."""

    def __init__(self, sessions: int) -> None:
        self.model = NextToken(sessions)
        self.engine = Engine(
            self.model,
            sequence_length=CAPACITY - NODES,
            max_tree_nodes=NODES,
            vocabulary=VOCABULARY,
        )
        self.samples: dict[str, list[float]] = {
            "engine": [],
            "engine cpu": [],
            "padding": [],
            "asking": [],
        }
        self._stopped = threading.Event()
        self._begin()
        texts = [
            Text(list(range(number * CAPACITY, (number + 1) * CAPACITY)), PROMPT)
            for number in range(sessions)
        ]
        opened = [self.engine.open(text.tokens[:PROMPT], SamplingParams()) for text in texts]
        for _, future in opened:
            self.engine.finish(future)
        for number, (session, _) in enumerate(opened):
            self._ask(session, ScriptedDraft(texts[number], VOCABULARY, number))
        self.engine.observer = self

    def run(self) -> None:
        """Fills `samples`, in milliseconds."""
        self._begin()
        self.engine.run(self._stopped)

    def forward(self, done: Forward) -> None:
        assert (done.rows, done.nodes) == (self.model.rows, self.model.rows * NODES), (
            f"not everybody took part: {done}"
        )
        figures = {
            "engine": done.engine_seconds - self._clients,
            "engine cpu": time.thread_time() - self._begun - self._clients - self.model.cpu_seconds,
            "padding": self.model.cpu_seconds,
            "asking": self._asking / done.rows,
        }
        for name, seconds in figures.items():
            self.samples[name].append(seconds * 1e3)
        if len(self.samples["engine"]) == FORWARDS:
            self.engine.stop(self._stopped)
        self._begin()

    def _begin(self) -> None:
        """Processor seconds of the next forward: of asking, and of all that clients do."""
        self._asking = self._clients = self.model.cpu_seconds = 0.0
        self._begun = time.thread_time()

    def _answered(self, session: Session, draft: ScriptedDraft, answer: Future[Answer]) -> None:
        start = time.thread_time()
        if answer.exception() is None:  # else the engine has stopped
            draft.commit(answer.result().verdict)
            self._ask(session, draft)
        self._clients += time.thread_time() - start

    def _ask(self, session: Session, draft: ScriptedDraft) -> None:
        drafted = draft.draft(session.root, NODES)
        start = time.thread_time()
        answer = self.engine.verify(session, TokenTree(drafted.tokens, drafted.parents))
        self._asking += time.thread_time() - start
        answer.add_done_callback(lambda done: self._answered(session, draft, done))


def overhead(sessions: Sequence[int], repetitions: int) -> dict[int, dict[str, Any]]:
    """Median milliseconds of each figure by sessions, measured in turn."""
    samples: dict[int, dict[str, list[float]]] = {count: {} for count in sessions}
    for _ in range(repetitions):
        for count in sessions:
            measured = Overhead(count)
            measured.run()
            for name, values in measured.samples.items():
                samples[count].setdefault(name, []).extend(values)
    return {
        count: {
            f"{name}, ms": round(statistics.median(values), 3) for name, values in by_name.items()
        }
        for count, by_name in samples.items()
    }


class Together:
    """Another Model, all of whose trees cost the same by what the scheduler knows, so that none is cut."""

    def __init__(self, model: Model) -> None:
        self.rows, self.capacity, self.max_nodes, self.copies_rows = (
            model.rows,
            model.capacity,
            model.max_nodes,
            model.copies_rows,
        )
        self._model = model

    def choose(self, segments: Sequence[Segment]) -> list[IntArray]:
        return self._model.choose(segments)

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        return self._model.rank(segments, k)

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        return self.rows, NODES if nodes <= NODES else self.max_nodes

    def copy_row(self, source: int, target: int, slots: int) -> None:
        self._model.copy_row(source, target, slots)


class RowByRow(Together):
    """The same, with a forward of its own for every row."""

    def choose(self, segments: Sequence[Segment]) -> list[IntArray]:
        return [self._model.choose([segment])[0] for segment in segments]


def serve(model: Model, texts: Sequence[Text], vocabulary: int) -> tuple[float, list[list[int]]]:
    """Tokens a second of a session for each text, all asking at the same time, and what they got."""
    engine = Engine(
        model,
        sequence_length=len(texts[0].tokens) + NODES,
        max_tree_nodes=NODES,
        vocabulary=vocabulary,
    )
    sessions, drafts = (
        [],
        [ScriptedDraft(text, vocabulary, number) for number, text in enumerate(texts)],
    )
    for text in texts:
        session, opened = engine.open(text.tokens[: text.prompt], SamplingParams())
        engine.finish(opened)
        sessions.append(session)
    start = time.perf_counter()
    while asking := [
        (session, draft)
        for session, draft in zip(sessions, drafts, strict=True)
        if not draft.at_end
    ]:
        answers = [
            engine.verify(session, draft.draft(session.root, NODES)) for session, draft in asking
        ]
        for (_, draft), answer in zip(asking, answers, strict=True):
            engine.finish(answer)
            draft.commit(answer.result().verdict)
    seconds = time.perf_counter() - start
    made = sum(session.length - text.prompt for session, text in zip(sessions, texts, strict=True))
    return made / seconds, [session.tokens for session in sessions]


def throughput(
    options: Options, sessions: Sequence[int], repetitions: int
) -> dict[int, dict[str, Any]]:
    """Median tokens a second, and how many of the texts are what the target says alone."""
    checkpoint = find_checkpoint(options, "target")
    vocabulary = checkpoint.tokenizer.vocabulary
    loaded = load_model(
        options,
        checkpoint,
        rows=max(sessions),
        sequence_length=2 * SPOKEN,
        spare=NODES,
        max_nodes=64,
    )
    prompts = [
        checkpoint.tokenizer.encode(f"def {name}(path):\n") for name in NAMES[: max(sessions)]
    ]
    texts = say_texts(loaded, prompts, SPOKEN, vocabulary)
    figures: dict[int, dict[str, Any]] = {}
    for count in sessions:
        rates: dict[str, list[float]] = {"together": [], "row by row": []}
        same = dict.fromkeys(rates, 0)
        for _ in range(repetitions):
            for name, model in (("together", Together(loaded)), ("row by row", RowByRow(loaded))):
                rate, said = serve(model, texts[:count], vocabulary)
                rates[name].append(rate)
                same[name] += sum(
                    tokens[:SPOKEN] == text.tokens[: len(tokens)]
                    for tokens, text in zip(said, texts, strict=False)
                )
        ratios = [
            one / other for one, other in zip(rates["together"], rates["row by row"], strict=True)
        ]
        figures[count] = {
            **{
                f"{name}, tokens/s": round(statistics.median(values), 2)
                for name, values in rates.items()
            },
            "ratio": [
                round(statistics.median(ratios), 2),
                round(min(ratios), 2),
                round(max(ratios), 2),
            ],
            **{
                f"{name}, texts equal to target-only": f"{equal} of {count * repetitions}"
                for name, equal in same.items()
            },
        }
        say(count, figures[count])
    return figures


def say(sessions: int, figures: dict[str, Any]) -> None:
    print(
        f"{sessions:3d} sessions: "
        + ", ".join(f"{name} {value}" for name, value in figures.items()),
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sessions", metavar="N,N,...", help="default: 1,8,32, or 1,4,8 with --model"
    )
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument(
        "--model", metavar="DIR", help="a real target: tokens a second, together and row by row"
    )
    parser.add_argument("--dtype", help="of the model (default: its own)")
    parser.add_argument(
        "--threads", type=int, default=2, help="of the model (default: %(default)s)"
    )
    parser.add_argument("--json", metavar="FILE")
    given = parser.parse_args()
    sessions = [
        int(count)
        for count in (given.sessions or ("1,4,8" if given.model else "1,8,32")).split(",")
    ]
    if given.model:
        options = Options(
            target_model=given.model, dtype=given.dtype, threads=given.threads, device="cpu"
        )
        figures = throughput(options, sessions, given.repetitions)
    else:
        figures = overhead(sessions, given.repetitions)
        for count, values in figures.items():
            say(count, values)
    if given.json:
        Path(given.json).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
