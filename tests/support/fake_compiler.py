"""A stand-in for the neuronx-cc command, with its arguments, log, metrics, NEFF and failures."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

CODE = """#!{python}
import json, sys
from pathlib import Path
words = sys.argv[1:]
assert words[:3] == ["compile", "--framework", "XLA"], words
assert "--auto-cast=none" in words and "--target" in words, words
source, output = Path(words[3]), Path(words[words.index("--output") + 1])
(log,) = [Path(word.partition("=")[2]) for word in words if word.startswith("--logfile=")]
with Path({runs!r}).open("a") as runs:
    runs.write(Path.cwd().name + "\\n")
assert source.read_bytes(), "an empty module"
begun = "2026-01-19T05:12:32Z INFO 24188 [root]: neuronx-cc " + " ".join(words)
if Path.cwd().name == {dies_at!r} and Path({runs!r}).read_text().split().count({dies_at!r}) == 1:
    sys.exit(70)
if Path.cwd().name == {fails_at!r}:
    refusal = "2026-01-19T05:14:02Z ERROR 24188 [Tensorizer]: [NCC_EVRF007] too many instructions"
    log.write_text(begun + "\\n" + refusal + "\\n")
    print("An Internal Compiler Error has occurred\\nSubcommand returned with exitcode=70")
    sys.exit(70)
log.write_text(begun + {log!r})
metrics = {{"StaticProfiler::DDRTransferBytes": 256_000_000}}
Path("global_metric_store.json").write_text(json.dumps({{"Sum": {{"tensorizer": metrics}}}}))
output.write_bytes(b"NEFF")
"""

LOG = """
2026-01-19T05:12:33Z INFO 24188 [HloMacCount]: Traffic has found 83886080
2026-01-19T05:12:34Z INFO 24200 [Codegen]: Instruction Stats:
┌─────────────────────┬───────┐
│ Opcode              │ Count │
├─────────────────────┼───────┤
│ LDWEIGHTS           │ 2304  │
│ MATMUL              │ 2304  │
│ NOP                 │ 13    │
└─────────────────────┴───────┘
2026-01-19T05:12:34Z INFO 24200 [HBMUsage]:
┌─────────────────────┬───────────┐
│ DRAM Memory Usage   │ Size      │
├─────────────────────┼───────────┤
│ Total:              │ 80.376MB  │
│ Model Code          │ 317.000KB │
│ DMA Ring IO         │ 0.000B    │
└─────────────────────┴───────────┘
2026-01-19T05:13:02Z INFO 24188 [root]: Subcommand returned with exitcode=0
"""


def install(folder: Path, fails_at: str = "", dies_at: str = "") -> Path:
    """Write the command into a folder, which the caller puts on PATH. Returns the file that says
    in which directories it was run.

    fails_at: the graph that it refuses
    dies_at: the graph at which it dies the first time, and gives no reason
    """
    folder.mkdir(parents=True, exist_ok=True)
    runs, command = folder / "runs.txt", folder / "neuronx-cc"
    runs.touch()
    command.write_text(
        CODE.format(
            python=sys.executable, runs=str(runs), fails_at=fails_at, dies_at=dies_at, log=LOG
        ),
        encoding="utf-8",
    )
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    return runs
