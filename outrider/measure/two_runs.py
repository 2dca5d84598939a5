"""`outrider bench compare`: the speeds of two runs, text by text, and how their settings
differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from inference.errors import InvalidRequest
from inference.files import write_whole
from outrider.measure.bench_options import PairingOptions
from outrider.measure.figures import ALL, Pair, arms_of, kinds_of, speed_up
from outrider.measure.journal import NAME, RunRecord, Values, differences, read_run
from outrider.terminal.tables import aligned


def compare_runs(options: PairingOptions) -> int:
    """Print the table, and what differs. Raises InvalidRequest for runs without a common text."""
    before, after = _read(options.before), _read(options.after)
    rows = list(pair_runs(before, after))
    if not rows:
        raise InvalidRequest(f"{options.before} and {options.after} have no text in common")
    differ = differences(before.plan["settings"], after.plan["settings"])
    differ += differences(before.starts[0]["models"], after.starts[0]["models"])
    cells = [[str(value) for value in row.values()] for row in rows]
    print(*aligned(list(rows[0]), cells), *(f"differs: {one}" for one in differ), sep="\n")
    if options.as_json is not None:
        found = {"differences": differ, "rows": rows}
        write_whole(Path(options.as_json), json.dumps(found, indent=1) + "\n")
    return 0


def _read(directory: str) -> RunRecord:
    run = read_run(Path(directory) / NAME)
    if run is None or not run.texts:
        raise InvalidRequest(f"{directory} has no texts of `outrider bench` in {NAME}")
    return run


def pair_runs(before: RunRecord, after: RunRecord) -> Iterator[Values]:
    """Yield the pairs of each arm and kind: how many texts, the second run's speed over the first,
    and how many are the same.

    An arm is compared with the one of its name, or with the only other one.
    """
    ours, theirs = arms_of(after.texts), arms_of(before.texts)
    earlier = {key._replace(rtt_ms=0.0): text for key, text in before.texts.items()}
    added, gone = ([arm for arm in a if arm not in b] for a, b in ((ours, theirs), (theirs, ours)))
    names = {arm: arm for arm in ours if arm in theirs}
    names |= dict(zip(added, gone, strict=True)) if len(added) == len(gone) == 1 else {}
    for arm, other in names.items():
        mine = [one for one in after.texts.items() if one[0].arm == arm]
        found = [(one, earlier.get(one[0]._replace(arm=other, rtt_ms=0.0))) for one in mine]
        pairs: list[Pair] = [(one, text) for one, text in found if text is not None]
        for kind in kinds_of(key for (key, _), _ in pairs):
            some = [pair for pair in pairs if kind in (ALL, pair[0][0].kind)]
            same = sum(one["token_ids"] == text["token_ids"] for (_, one), text in some)
            yield {
                "kind": kind,
                "arm": arm if arm == other else f"{arm} over {other}",
                "texts": len(some),
                "speed-up of the second": speed_up(some),
                "same": same,
            }
