"""Runs `python -m compile`: builds an artefact, prints what would be built, or moves artefacts to
and from a store.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from compile.build.quiet import quiet_libraries
from compile.compile_options import CompileOptions, parse
from inference.cache_directory import cache_directory
from inference.command import run_command, say
from inference.errors import InvalidRequest

if TYPE_CHECKING:
    from compile.build.kept_times import KeptTimes
    from compile.build.progress import BuildProgress
    from compile.request import BuildCheckpoint, BuildRequest
    from inference.artifact import Manifest

VERBS = {
    "check": "compile.check",
    "rules": "compile.predictions",
    "times": "compile.predictions",
    "try": "compile.try_compiler",
}
"""Modules of what `python -m compile VERB FLAGS` does beside building."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, a verb or a build. Returns 0 when what was asked was done."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in VERBS:
        run: Callable[[Sequence[str]], int] = import_module(VERBS[given[0]]).main
        return run(given)
    options = parse(given)
    return run_command(
        lambda: _run(options, given),
        debug=options.debug,
        interrupted="interrupted: the same command goes on from here",
    )


def _run(options: CompileOptions, arguments: Sequence[str]) -> int:
    if options.where.on:
        raise InvalidRequest("--on starts an instance: call it as `outrider compile --on TYPE`")
    if options.pull:
        _pull(options)
    elif options.target is None:
        _push(options)
    elif options.dry_run:
        _request_of(options)
    else:
        if not options.verbose:
            quiet_libraries()
        _build(options, arguments)
        if options.push:
            _push(options)
    return 0


def _build(options: CompileOptions, arguments: Sequence[str]) -> None:
    from compile.build.build import build_artifact, planned_manifest, read_source
    from compile.build.kept_times import KeptTimes
    from compile.builders import builder_of
    from inference.artifact import MANIFEST

    out, (request, checkpoint) = _out(options), _request_of(options)
    spec, source = request.spec, read_source(checkpoint.directory)
    builder = builder_of(options, spec, checkpoint)
    if options.push and not (out / MANIFEST).is_file():
        _say_if_pushed(options.push, planned_manifest(spec, source, builder))
    command = shlex.join(["python", "-m", "compile", *arguments])
    kept = KeptTimes.of(cache_directory("build_times"), spec, source.model_fingerprint)
    with _progress(kept) as progress:
        manifest = build_artifact(spec, source, builder, out, command=command, progress=progress)
    if spec.fused is not None:
        from compile.agreement import smoke

        print(smoke(out, manifest, say))
    print(f"{out}: complete, digest {manifest.digest()}")
    if request.lacking:
        print(f"it lacks {len(request.lacking)} graphs, which {_completing(arguments)} adds")


@contextmanager
def _progress(kept: KeptTimes) -> Iterator[BuildProgress]:
    """A live bar where stderr is a terminal, else lines."""
    from compile.build.progress import LineProgress, LiveProgress

    if not sys.stderr.isatty():
        yield LineProgress(say, kept)
        return
    with LiveProgress(kept).shown() as live:
        yield live


def _completing(arguments: Sequence[str]) -> str:
    """The command that builds what --quick left out."""
    kept = [word for word in arguments if word != "--quick"]
    return shlex.join(["python", "-m", "compile", *kept])


def _say_if_pushed(store: str, planned: Manifest) -> None:
    """Print the digest of an artefact that others pushed for the same inputs. It is not taken
    unasked, because an artefact is executable code.
    """
    from compile.store import find, open_store

    digest = find(planned, open_store(store))
    if digest:
        say(
            "the same was built and pushed before: in place of building, python -m compile --pull "
            f"{shlex.quote(store)} --digest {digest} --out DIR"
        )


def _push(options: CompileOptions) -> None:
    from compile.store import open_store, push

    assert options.push is not None
    out = _out(options)
    pushed = push(out, open_store(options.push), say)
    if pushed.first != pushed.digest:
        print(
            f"the same was built and pushed before, as {pushed.first}: prefer that one, so that "
            "machines share one artefact"
        )
    print(
        f"pull it with: python -m compile --pull {shlex.quote(options.push)} --digest "
        f"{pushed.digest} --out {shlex.quote(str(out))}"
    )


def _pull(options: CompileOptions) -> None:
    from compile.store import open_store, pull

    assert options.pull is not None
    assert options.digest is not None, "the options were checked"
    manifest = pull(open_store(options.pull), options.digest, _out(options), say)
    print(f"{options.out}: {manifest.model} for {manifest.target}, every file checked")


def _out(options: CompileOptions) -> Path:
    assert options.out is not None, "the options were checked"
    return Path(options.out)


def _request_of(options: CompileOptions) -> tuple[BuildRequest, BuildCheckpoint]:
    """What is to be built, checked against the device's memory, and its checkpoint. Prints the
    plan.
    """
    from compile.plan.first_graphs import purposes
    from compile.plan.fit import check_fits
    from compile.plan.plan_report import describe
    from compile.request import find_checkpoint, make_request

    checkpoint = find_checkpoint(options)
    request = make_request(options, checkpoint)
    spec, lacking = request.spec, request.lacking
    need = check_fits(checkpoint.config, spec)
    lines = [
        *request.explanation,
        *describe(spec, checkpoint.config, need, options.workers),
        "",
        "what each graph is for:",
        *purposes(spec, spec.graphs),
    ]
    if lacking:
        lines += [
            "",
            f"left out by --quick ({len(lacking)} graphs; larger ones serve in their place, "
            "slower):",
            *purposes(spec, lacking),
            "the same command without --quick adds them to the same directory",
        ]
    print(*lines, "", sep="\n", flush=True)
    return request, checkpoint


if __name__ == "__main__":
    sys.exit(main())
