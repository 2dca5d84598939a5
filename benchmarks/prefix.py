"""Savings by a shared beginning: copying a row's keys against computing them, and the time to the
first token over gRPC.

    python -m benchmarks.prefix [--model DIR --dtype bfloat16] [--prefix 1000]

First table: milliseconds to copy N tokens' keys from another row and to prefill N tokens, in turn,
and the median of their ratios. Second: seconds from asking for a session to its first token, for a
prompt of --prefix tokens and a few of its own. "new": nobody had them before; "idle row": a session
that is over had them; "busy row": one that is open has them. The three take turns, and the ratios
are of the same turn. Client and target share this process.

With --restarts N nothing else is measured: N times, a target with --prefix_dir is started in a
process of its own, asked for a new prompt and for one that an idle row has, and started again to
read the beginning from its file. Its first text is of another prompt, so that nothing is loaded in
what is timed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.harness import Flags, JsonFile, run, write_json
from grpc_comm.client.connection import Connection, connect
from grpc_comm.client.remote_session import RemoteSession
from grpc_comm.server.server import BackgroundServer, Target
from inference.backends import Model
from inference.backends.sequence import ModelSequence
from inference.engine.prefix_files import LEAST
from inference.flags.values import ModelName
from inference.order import Decode
from inference.sampling import SamplingParams
from outrider.options.groups import Precision
from outrider.options.roles import TargetRole
from outrider.target.spawn import started
from outrider.target.target import load_target

LENGTHS = (8, 16, 32, 64, 128, 256, 512, 1000)
OWN = 8
"""Tokens of a prompt's own, after those it shares."""

FEWEST_IDS = 256
"""Ids that every model has."""


def milliseconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def copying(
    model: Model, vocabulary: int, lengths: tuple[int, ...], repetitions: int
) -> dict[int, dict[str, float]]:
    """Medians of both and of their ratio, by tokens."""
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, vocabulary, max(lengths)).tolist()
    ModelSequence(model, 0, SamplingParams()).extend(tokens)
    figures: dict[int, dict[str, float]] = {}
    for length in lengths:
        copied, prefilled = [], []
        for _ in range(repetitions):
            copied.append(milliseconds(partial(model.copy_row, 0, 1, length)))
            prefilled.append(
                milliseconds(
                    partial(ModelSequence(model, 1, SamplingParams()).extend, tokens[:length])
                )
            )
        ratio = statistics.median(one / other for one, other in zip(copied, prefilled, strict=True))
        figures[length] = {
            "copy": statistics.median(copied),
            "prefill": statistics.median(prefilled),
            "ratio": ratio,
        }
    return figures


def first_token(target: Target, prefix: int, repetitions: int) -> dict[str, dict[str, float]]:
    """Median seconds, and the median ratio to a new prompt, by who had its beginning before."""
    seconds: dict[str, list[float]] = {"new": [], "idle row": [], "busy row": []}
    rng = np.random.default_rng(2)
    with BackgroundServer(target) as server, connect(str(server.address)) as connection:
        for turn in range(repetitions + 1):  # the first warms up
            shared = rng.integers(0, target.description.vocabulary, prefix).tolist()
            for name, opening in (("new", 0), ("idle row", 0), ("busy row", 1)):
                with ExitStack() as held:
                    for _ in range(opening):
                        _, session = _first(
                            connection,
                            [
                                *shared,
                                *rng.integers(0, target.description.vocabulary, OWN).tolist(),
                            ],
                        )
                        held.callback(session.close)
                    took, session = _first(
                        connection,
                        [*shared, *rng.integers(0, target.description.vocabulary, OWN).tolist()],
                    )
                    session.close()
                if turn:
                    seconds[name].append(took)
    new = seconds["new"]
    return {
        name: {
            "seconds": statistics.median(took),
            "ratio": statistics.median(one / other for one, other in zip(took, new, strict=True)),
        }
        for name, took in seconds.items()
    }


def after_restarts(flags: Sequence[str], prefix: int, restarts: int) -> dict[str, float]:
    """Median seconds to the first token, by where the beginning of the prompt was."""
    seconds: dict[str, list[float]] = {"new": [], "idle row": [], "file": []}
    rng = np.random.default_rng(3)
    for _ in range(restarts):
        shared = rng.integers(0, FEWEST_IDS, prefix).tolist()
        with TemporaryDirectory() as folder:
            for names in (("new", "idle row"), ("file",)):
                with (
                    started("target", [*flags, "--batch", "2", "--prefix_dir", folder]) as target,
                    connect(target.address) as connection,
                ):
                    _first(connection, rng.integers(0, FEWEST_IDS, LEAST).tolist())[1].close()
                    for name in names:
                        own = rng.integers(0, FEWEST_IDS, OWN).tolist()
                        took, session = _first(connection, [*shared, *own])
                        session.close()
                        seconds[name].append(took)
    return {name: statistics.median(took) for name, took in seconds.items()}


def _first(connection: Connection, prompt: list[int]) -> tuple[float, RemoteSession]:
    """Seconds to the first token of a session that stays open."""
    session = connection.session()
    start = time.perf_counter()
    session.open(prompt, SamplingParams())
    session.decode(Decode(len(prompt) + 1))
    while (progress := session.receive(1.0)) is None or not progress.tokens:
        pass
    return time.perf_counter() - start, session


class Options(Flags):
    model: ModelName | None = None
    dtype: Precision | None = None
    threads: int | None = None
    prefix: int = 1000
    repetitions: int = 15
    restarts: int | None = None
    json_file: JsonFile = None


def main(given: Options) -> None:
    if given.restarts is not None:
        named = {"--model": given.model, "--dtype": given.dtype, "--threads": given.threads}
        flags = [part for name, value in named.items() if value for part in (name, str(value))]
        waits = after_restarts(flags, given.prefix, given.restarts)
        for name, took in waits.items():
            print(f"first token, {name:<9}{took * 1e3:>9.1f} ms, {took / waits['new']:.3f}")
        write_json(given.json_file, {"after restarts": waits})
        return
    options = TargetRole(
        port=0, model=given.model, dtype=given.dtype, threads=given.threads, batch=3
    )
    target = load_target(options)
    longest = target.engine.sequence_length - OWN - 2
    figures = copying(
        target.engine.model,
        target.description.vocabulary,
        tuple(n for n in LENGTHS if n <= longest),
        given.repetitions,
    )
    print(f"{'tokens':>7}{'copy ms':>10}{'prefill ms':>12}{'ratio':>9}")
    for length, row in figures.items():
        print(f"{length:>7}{row['copy']:>10.3f}{row['prefill']:>12.2f}{row['ratio']:>9.4f}")
    turns = first_token(target, min(given.prefix, longest), given.repetitions)
    for name, wait in turns.items():
        print(
            f"first token, {name:<9}{wait['seconds'] * 1e3:>9.1f} ms, {wait['ratio']:.3f} of a new "
            "prompt's"
        )
    write_json(given.json_file, {"copying": figures, "first token": turns})


if __name__ == "__main__":
    run(Options, main)
