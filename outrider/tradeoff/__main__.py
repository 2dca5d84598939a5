"""`python -m outrider.tradeoff`: measures the curve of --cs, shows it and, with --out, writes
it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from inference.command import run_command
from outrider.tradeoff.options import TradeoffOptions, parse


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; 0 when it was done."""
    options = parse(arguments)
    return run_command(lambda: _run(options), debug=options.draft.debug)


def _run(options: TradeoffOptions) -> int:
    from outrider.tradeoff.measure import measure_tradeoff
    from outrider.tradeoff.results import print_tradeoff, write_tradeoff

    curve = measure_tradeoff(options)
    print_tradeoff(curve)
    if options.out is not None:
        for path in write_tradeoff(Path(options.out), options, curve):
            print(f"wrote {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
