"""Runs `python -m compile.ops`: a target's graphs on one rank, held against the compiler's rules or
priced by cost. It builds nothing and needs a config.json only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from compile.build.between import calls_between
from compile.compile_options import CompileOptions, parse
from compile.ops.engines import rates_of
from compile.ops.op_work import instructions
from compile.ops.pass_time import COSTS, pass_work, work_between
from compile.ops.rank_graph import record_between, record_bucket
from compile.ops.rules import broken, live_bytes
from compile.ops.torch_neuron_rules import rules_of
from compile.plan.memory import gib
from compile.request import find_checkpoint, make_request
from compile.spec import CompileSpec
from inference.command import run_command
from inference.errors import InvalidRequest
from inference.model.config import ModelConfig

USAGE = """usage: python -m compile.ops rules|times FLAGS
  rules  what in the graphs the compiler refuses or the device computes wrongly, with source lines
  times  milliseconds of a pass by cost
FLAGS are those of outrider compile, such as
  python -m compile.ops times --model docs/shapes/llama-3.1-8b --target trn1 --tensor_parallel 2"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 1 where a rule is broken or something is wrong with the flags."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] not in ("rules", "times"):
        print(USAGE, file=sys.stderr if given[:1] != ["--help"] else sys.stdout)
        return int(given[:1] != ["--help"])
    options = parse([*given[1:], "--dry_run"])
    work = _rules if given[0] == "rules" else _times
    return run_command(lambda: work(*_asked(options)), debug=options.debug)


def _asked(options: CompileOptions) -> tuple[ModelConfig, CompileSpec]:
    if options.device == "cpu":
        raise InvalidRequest(
            "--target is needed: trn1, inf2, trn2 or trn3, whose rules and rates are known"
        )
    checkpoint = find_checkpoint(options)
    return checkpoint.config, make_request(options, checkpoint).spec


def _rules(config: ModelConfig, spec: CompileSpec) -> int:
    count = 0
    recordings = [(b.name, record_bucket(config, spec, b)) for b in spec.graphs]
    between = [(name, record_between(config, spec, name)) for name in calls_between(spec)]
    for name, recording in [*recordings, *between]:
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


def _times(config: ModelConfig, spec: CompileSpec) -> int:
    print(*table(config, spec), sep="\n")
    return 0


def table(config: ModelConfig, spec: CompileSpec) -> Iterator[str]:
    """Milliseconds of a pass by cost, a line a graph: at the target's rates, and in the last
    column at what the fastest published target reaches.
    """
    rates = rates_of(spec.target)
    heads = "".join(f"{cost:>13}" for cost in COSTS)
    last = f"at {rates.observed / 1e9:.0f} GB/s"
    yield f"{'ms':<34}{heads}{'sum':>9}{last:>14}"
    works = {bucket.name: pass_work(config, spec, bucket) for bucket in spec.graphs}
    for name, work in (works | work_between(config, spec)).items():
        time, slower = work.milliseconds(rates), work.milliseconds(rates, rates.observed)
        costs = "".join(f"{time.costs[cost]:>13.1f}" for cost in COSTS)
        yield f"{name:<34}{costs}{time.total:>9.1f}{slower.total:>14.1f}"


if __name__ == "__main__":
    sys.exit(main())
