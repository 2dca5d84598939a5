"""Runs `outrider compile rules`, `times` and `try`: a Neuron target's graphs on one rank, held
against the compiler's rules, priced by cost, or given to neuronx-cc on an ordinary x86 machine
beside what compile/ops predicts of them.

All need of the model its config.json alone, and no device; `try` needs AWS's packages. What it
leaves in --out:

    NAME/graph.hlo      the graph as the compiler takes it
    NAME/output.txt     what the compiler printed
    NAME/log-neuron-cc.txt, NAME/global_metric_store.json, NAME/graph.neff   what it wrote
    NAME/report.json    its figures beside the predicted ones; written last

The same command goes on where it was broken off. Not yet run on the compiler itself.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from compile.build.compiler_report import (
    METRICS,
    CompilerDied,
    CompilerReport,
    first_error,
    gave_reason,
    once_more,
    read_report,
)
from compile.build.neff_cache import unit_key
from compile.build.neuron_builder import NeuronBuilder
from compile.build.neuron_compiler import PLATFORMS
from compile.build.neuron_graphs import LOG
from compile.compile_options import CompileOptions, parse
from compile.ops.op_work import instructions
from compile.ops.pass_time import COSTS, PUBLISHED, RATES, pass_work, work_between
from compile.ops.recording import record_call
from compile.ops.rules import broken, live_bytes, rules_of
from compile.parallel import calls_between
from compile.plan.graph_time import GraphTime, graph_time, times_between
from compile.plan.memory import gib
from compile.plan.plan_report import basis
from compile.request import BuildRequest, find_checkpoint, make_request
from compile.spec import CompileSpec
from inference.backends.neuron_sdk import sdk_versions
from inference.command import run_command, say
from inference.errors import BadArtifact, InvalidRequest, MissingExtra
from inference.files import write_whole
from inference.json_file import read_json
from inference.model.config import ModelConfig
from inference.model.round_graph import idle_inputs

COMPILER = "neuronx-cc"
_REPORT, _HLO, _NEFF, _OUTPUT = "report.json", "graph.hlo", "graph.neff", "output.txt"


@dataclass(frozen=True)
class Tried:
    """The outcome of compiling one graph, and what was predicted of it."""

    name: str
    predicted: GraphTime
    seconds: float  # that the compiler took
    report: CompilerReport
    error: str = ""  # the graph's name and why the compiler failed; empty where it did not


def main(arguments: Sequence[str]) -> int:
    """Run a verb with its flags. Returns 1 where a rule is broken, the compiler refused a graph, or
    something is wrong with the flags.
    """
    verb, *flags = arguments
    options = parse([*flags, "--dry_run"])
    work = {"rules": _rules, "times": _times, "try": _try_all}[verb]
    return run_command(
        lambda: work(options),
        debug=options.debug,
        interrupted="interrupted: the same command goes on from here",
    )


def _asked(options: CompileOptions) -> BuildRequest:
    if options.device == "cpu":
        raise InvalidRequest(
            "--target is needed: trn1, inf2, trn2 or trn3, whose rules and rates are known"
        )
    return make_request(options, find_checkpoint(options))


def _rules(options: CompileOptions) -> int:
    request = _asked(options)
    spec, count = request.spec, 0
    calls = {bucket.name: idle_inputs(bucket) for bucket in spec.graphs} | calls_between(spec)
    for name, inputs in calls.items():
        recording = record_call(request.checkpoint.config, spec, inputs)
        violations = broken(recording, rules_of(spec.target))
        count += len(violations)
        held, at = live_bytes(recording)
        made = sum(instructions(op) for op in recording.ops)
        print(
            f"{name}: {len(violations)} violations, about {made:,} instructions, "
            f"{gib(held)} live at {at.where}",
            *violations,
            sep="\n  ",
        )
    return int(count > 0)


def _times(options: CompileOptions) -> int:
    request = _asked(options)
    print(*table_of_times(request.checkpoint.config, request.spec), sep="\n")
    return 0


def table_of_times(config: ModelConfig, spec: CompileSpec) -> Iterator[str]:
    """Milliseconds of a pass by cost, a line a graph: at the target's rates, and in a last column
    as published, where the target has such passes. The last line says what stands behind them.
    """
    rates, published = RATES[spec.target], PUBLISHED.get(spec.target)
    heads = "".join(f"{cost:>13}" for cost in COSTS)
    yield f"{'ms':<34}{heads}{'sum':>9}" + (f"{'as published':>14}" if published else "")
    works = {bucket.name: pass_work(config, spec, bucket) for bucket in spec.graphs}
    for name, work in (works | work_between(config, spec)).items():
        time = work.milliseconds(rates)
        costs = "".join(f"{time.costs[cost]:>13.1f}" for cost in COSTS)
        beside = f"{work.milliseconds(rates, published).total:>14.1f}" if published else ""
        yield f"{name:<34}{costs}{time.total:>9.1f}{beside}"
    yield basis(spec.target)


def _try_all(options: CompileOptions) -> int:
    if options.device not in PLATFORMS:
        raise InvalidRequest(
            "--target is needed: trn1 or inf2, whose graphs PyTorch/XLA gives to neuronx-cc"
        )
    if options.out is None:
        raise InvalidRequest("--out is needed: the directory of the compiler's logs")
    compiler, request = _compiler(), _asked(options)
    spec, config = request.spec, request.checkpoint.config
    builder = NeuronBuilder(
        spec, request.checkpoint.directory, request.checkpoint.draft, workers=options.workers
    )
    predicted = {bucket.name: graph_time(config, spec, bucket) for bucket in spec.graphs}
    predicted |= times_between(config, spec)
    one = partial(_try, compiler, builder, Path(options.out))
    with ThreadPoolExecutor(builder.workers) as pool:
        tried = list(pool.map(one, builder.names, predicted.values()))
    print(*table(tried, spec), sep="\n")
    return int(any(graph.error for graph in tried))


def _compiler() -> str:
    """The path of neuronx-cc, which lies on PATH or beside this Python."""
    found = shutil.which(COMPILER) or shutil.which(COMPILER, path=str(Path(sys.executable).parent))
    if found is None:
        raise MissingExtra(
            f"{COMPILER} is not on PATH: activate the environment that has AWS's packages "
            "(docs/neuron.md)"
        )
    return found


def _try(
    compiler: str, builder: NeuronBuilder, out: Path, name: str, predicted: GraphTime
) -> Tried:
    """Compile one graph, unless it was compiled before from the same HLO with the same flags."""
    directory, (hlo, flags) = out / name, builder.hlo(name)
    key = unit_key("tried", hlo, flags, sdk_versions()[COMPILER])
    seconds, error = _kept_seconds(directory / _REPORT, key), ""
    kept = seconds is not None
    if seconds is None:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        (directory / _HLO).write_bytes(hlo.SerializeToString())
        say(f"{name}: {COMPILER} begins")
        files = [_HLO, "--output", _NEFF, f"--logfile={LOG}"]  # in its working directory
        command = [compiler, "compile", "--framework", "XLA", *files, *shlex.split(flags)]
        try:
            seconds = once_more(lambda: _compile(name, [*command, "--verbose=35"], directory))
        except BadArtifact as refused:
            seconds, error = 0.0, str(refused)
    report = read_report(directory / LOG, directory / METRICS)
    tried = Tried(name, predicted, seconds, report, error)
    compiled = "compiled before" if kept else f"compiled in {seconds:.0f} s"
    say(error or f"{name}: {compiled}")
    if not error:
        record = {"key": key, **asdict(tried), "predicted": predicted._asdict()}
        write_whole(directory / _REPORT, json.dumps(record, indent=1) + "\n")
    return tried


def _compile(name: str, command: Sequence[str], directory: Path) -> float:
    """Run the compiler in a directory. Returns its seconds. Raises BadArtifact, which says why it
    failed.
    """
    begun = time.monotonic()
    with (directory / _OUTPUT).open("wb") as output:
        done = subprocess.run(  # noqa: S603 (the compiler on the user's own PATH)
            command, cwd=directory, stdout=output, stderr=subprocess.STDOUT, check=False
        )
    if done.returncode == 0 and (directory / _NEFF).is_file():
        return time.monotonic() - begun
    texts = [directory / name for name in (LOG, _OUTPUT)]
    said = "\n".join(
        path.read_text(encoding="utf-8", errors="replace") for path in texts if path.is_file()
    )
    failed = BadArtifact if gave_reason(said) else CompilerDied
    raise failed(f"{name}: refused (exit code {done.returncode}): {first_error(said)}")


def _kept_seconds(path: Path, key: str) -> float | None:
    """Seconds of an earlier run that compiled the same; None where there is none."""
    if not path.is_file() or not (path.parent / _NEFF).is_file():
        return None
    try:
        record = read_json(path, BadArtifact).dictionary()
    except BadArtifact:
        return None
    return float(record["seconds"]) if record.get("key") == key else None


def table(tried: Sequence[Tried], spec: CompileSpec) -> Iterator[str]:
    """A line a graph: what was predicted, and what the compiler says."""
    stream = RATES[spec.target].stream
    yield (f"{'':<36}{'instructions':>26}{'ms':>20}{'code':>10}{'memory':>11}{'compiling':>11}")
    yield (
        f"{'':<36}{'predicted':>13}{'compiler':>13}{'predicted':>10}{'to move':>10}"
        f"{'MiB':>10}{'GiB':>11}{'s':>11}"
    )
    for graph in tried:
        yield graph.error or f"{graph.name:<36}{_figures(graph, stream)}"
    yield (
        f"to move: what the compiler's own bytes take at {stream / 1e9:.0f} GB/s; -: it did not say"
    )


def _figures(graph: Tried, stream: float) -> str:
    said = graph.report
    to_move = None if said.moved is None else said.moved / stream * 1e3
    return (
        f"{graph.predicted.instructions:>13,}{_shown(said.instructions, 13, ',')}"
        f"{graph.predicted.seconds * 1e3:>10.1f}{_shown(to_move, 10, '.1f')}"
        f"{_shown(said.code, 10, '.1f', 1 << 20)}{_shown(said.memory, 11, '.2f', 1 << 30)}"
        f"{graph.seconds:>11.0f}"
    )


def _shown(value: float | None, width: int, form: str, unit: int = 1) -> str:
    if value is None:
        return f"{'-':>{width}}"
    return f"{value / unit if unit > 1 else value:>{width}{form}}"
