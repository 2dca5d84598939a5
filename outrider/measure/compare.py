"""`outrider compare`: all architectures on the same prompts, in turn, with a verdict."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from outrider.client.client import Client
from outrider.measure.arms import ARCHITECTURES, Arm, local_arms
from outrider.measure.bench import command, compare_arms
from outrider.measure.options import CompareOptions


def run(options: CompareOptions) -> int:
    """Compare, and write and print the report."""
    local = list[Arm]()

    def in_process(client: Client, arms: list[Arm]) -> AbstractContextManager[list[Arm]]:
        if options.in_process and not local:  # loaded once, for all links
            local.extend(local_arms(options.in_process, options.local_role(), client.tokenizer))
        return nullcontext([*arms, *local])

    commands = {
        name: command(preset) if preset else "none: the target runs in the comparison's process"
        for name, preset in ARCHITECTURES.items()
    }
    shown = [*options.arms, *options.in_process]
    below = [
        "Commands, to which the flags that name your models are added:",
        *(f"{name:<{max(map(len, shown))}}  {commands[name]}" for name in shown),
        "",
    ]
    return compare_arms(options, commands, in_process, below)
