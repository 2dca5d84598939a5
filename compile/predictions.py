"""Runs `outrider compile rules` and `outrider compile times`: a target's graphs on one rank, held
against the compiler's rules or priced by cost. They build nothing and need a config.json only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compile.compile_options import CompileOptions, parse
from compile.ops.engines import PUBLISHED, rates_of
from compile.ops.op_work import instructions
from compile.ops.pass_time import COSTS, pass_work, work_between
from compile.ops.rank_graph import record_call
from compile.ops.rules import broken, live_bytes, rules_of
from compile.parallel import calls_between
from compile.plan.memory import gib
from compile.plan.plan_report import basis
from compile.request import find_checkpoint, make_request
from compile.spec import CompileSpec
from inference.command import run_command
from inference.errors import InvalidRequest
from inference.model.config import ModelConfig
from inference.model.round_graph import idle_inputs


def main(arguments: Sequence[str]) -> int:
    """Run the command, given with its verb. Returns 1 where a rule is broken or something is wrong
    with the flags.
    """
    verb, *flags = arguments
    options = parse([*flags, "--dry_run"])
    work = _rules if verb == "rules" else _times
    return run_command(lambda: work(options), debug=options.debug)


def _asked(options: CompileOptions) -> tuple[ModelConfig, CompileSpec]:
    if options.device == "cpu":
        raise InvalidRequest(
            "--target is needed: trn1, inf2, trn2 or trn3, whose rules and rates are known"
        )
    request = make_request(options, find_checkpoint(options))
    return request.checkpoint.config, request.spec


def _rules(options: CompileOptions) -> int:
    config, spec = _asked(options)
    count = 0
    calls = {bucket.name: idle_inputs(bucket) for bucket in spec.graphs} | calls_between(spec)
    for name, inputs in calls.items():
        recording = record_call(config, spec, inputs)
        violations = broken(recording, rules_of(spec.target))
        count += len(violations)
        held, at = live_bytes(recording)
        made = sum(instructions(op) for op in recording.ops)
        print(
            f"{name}: {len(violations)} violations, about {made:,} instructions, "
            f"{gib(held)} live at {at.where}"
        )
        for violation in violations:
            print(f"  {violation}")
    return int(count > 0)


def _times(options: CompileOptions) -> int:
    print(*table(*_asked(options)), sep="\n")
    return 0


def table(config: ModelConfig, spec: CompileSpec) -> Iterator[str]:
    """Milliseconds of a pass by cost, a line a graph: at the target's rates, and in a last column
    as published, where the target has such passes. The last line says what stands behind them.
    """
    rates, published = rates_of(spec.target), PUBLISHED.get(spec.target)
    heads = "".join(f"{cost:>13}" for cost in COSTS)
    yield f"{'ms':<34}{heads}{'sum':>9}" + (f"{'as published':>14}" if published else "")
    works = {bucket.name: pass_work(config, spec, bucket) for bucket in spec.graphs}
    for name, work in (works | work_between(config, spec)).items():
        time = work.milliseconds(rates)
        costs = "".join(f"{time.costs[cost]:>13.1f}" for cost in COSTS)
        beside = f"{work.milliseconds(rates, published).total:>14.1f}" if published else ""
        yield f"{name:<34}{costs}{time.total:>9.1f}{beside}"
    yield basis(spec.target)
