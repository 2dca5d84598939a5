"""Runs `outrider compile` (also `python -m compile`): builds an artefact, prints a plan, or moves
artefacts to and from a store.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from compile.compile_options import CompileOptions, parse
from inference.command import run_command, say
from inference.errors import InvalidRequest, require

if TYPE_CHECKING:
    from compile.request import BuildRequest


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code, 0 for success."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = parse(words)
    return run_command(
        lambda: _run(options, words),
        debug=options.debug,
        interrupted="interrupted: run the same command to resume",
    )


def _run(options: CompileOptions, arguments: Sequence[str]) -> int:
    if options.on:
        raise InvalidRequest("--on starts an instance: call it as `outrider compile --on TYPE`")
    if options.pull:
        _pull(options)
    elif options.target is None:
        _push(options)
    else:
        require("torch", "outrider compile")
        if options.dry_run:
            _request_of(options, arguments)
            return 0
        _build(options, arguments)
        if options.push:
            _push(options)
    return 0


def _build(options: CompileOptions, arguments: Sequence[str]) -> None:
    from compile.build.build import build_artifact, quiet_libraries, read_source
    from compile.builders import builder_of

    if not options.debug:
        quiet_libraries()
    out, request = Path(options.out or ""), _request_of(options, arguments)
    spec, checkpoint = request.spec, request.checkpoint
    source = read_source(checkpoint.directory)
    builder = builder_of(
        spec,
        checkpoint.directory,
        checkpoint.draft,
        graph_store=options.graph_store,
        quiet=not options.debug,
    )
    command = shlex.join(["outrider", "compile", *arguments])
    live = sys.stderr.isatty()
    manifest = build_artifact(spec, source, builder, out, command=command, say=say, live=live)
    print(f"{out}: complete, digest {manifest.digest()}")
    if request.lacking:
        rest = shlex.join(["outrider", "compile", *(w for w in arguments if w != "--quick")])
        print(f"it lacks {len(request.lacking)} graphs, which {rest} adds")


def _push(options: CompileOptions) -> None:
    from compile.store import open_store, push

    store, out = options.push or "", Path(options.out or "")
    digest = push(out, open_store(store), say)
    print(
        f"pull it with: outrider compile --pull {shlex.quote(store)} --digest {digest} "
        f"--out {shlex.quote(str(out))}"
    )


def _pull(options: CompileOptions) -> None:
    from compile.store import open_store, pull

    store, out = open_store(options.pull or ""), Path(options.out or "")
    manifest = pull(store, options.digest or "", out, say)
    print(f"{options.out}: {manifest.model} for {manifest.target}, every file checked")


def _request_of(options: CompileOptions, arguments: Sequence[str]) -> BuildRequest:
    """Print the plan of a build and return its request; check that it fits the device's memory."""
    from compile.plan.fit import check_fits
    from compile.plan.report import describe, purposes, verdict
    from compile.request import find_checkpoint, make_request

    request = make_request(options, find_checkpoint(options))
    spec, lacking, config = request.spec, request.lacking, request.checkpoint.config
    need = check_fits(config, spec)
    summary = verdict(spec, config, need)
    if options.dry_run:
        words = [word for word in arguments if word not in ("--dry_run", "--dry-run")]
        out = [] if options.out else ["--out", "artefact"]
        summary += f"; next: {shlex.join(['outrider', 'compile', *words, *out])}"
    lines = [summary, "", *describe(spec, config, need)]
    if lacking:
        lines += [
            "",
            f"left out by --quick ({len(lacking)} graphs; larger ones serve in their place, "
            "slower):",
            *purposes(spec, lacking),
            "the same command without --quick adds them to the same directory",
        ]
    print(*lines, "", sep="\n", flush=True)
    return request


if __name__ == "__main__":
    sys.exit(main())
