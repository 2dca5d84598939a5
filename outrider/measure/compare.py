"""Runs `outrider compare`: architectures side by side, and what follows. It claims nothing
that was not measured in this call.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from inference.command import run_command, say
from inference.extras import require
from outrider.measure.compare_options import CompareOptions, parse


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison, once for each profile of --emulate. Returns 0 when it was made."""
    options = parse(arguments)
    return run_command(lambda: _run(options), debug=options.debug)


def _run(options: CompareOptions) -> int:
    """Measure, print, and write the files."""
    require("torch", "outrider compare")
    from outrider.measure.comparison import compare
    from outrider.measure.report import told, write_results

    for profile in options.emulate or (None,):
        comparison = compare(options, profile)
        print(told(comparison))
        if options.out:
            several = profile is not None and len(options.emulate) > 1
            directory = Path(options.out) / (Path(profile or "").stem if several else "")
            for path in write_results(directory, comparison):
                say(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
