"""Runs `python -m compile`: builds an artefact, prints what would be built, or moves artefacts to
and from a store.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from compile.compile_options import CompileOptions, parse
from inference.command import run_command
from inference.errors import InvalidRequest

if TYPE_CHECKING:
    from compile.build.build import Builder
    from compile.request import BuildCheckpoint
    from compile.spec import CompileSpec
    from inference.artifact import Manifest


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0 when what was asked was done."""
    options = parse(arguments)
    given = sys.argv[1:] if arguments is None else arguments
    return run_command(
        lambda: _run(options, given),
        debug=options.debug,
        interrupted="interrupted: the same command goes on from here",
    )


def _run(options: CompileOptions, arguments: Sequence[str]) -> int:
    if options.pull:
        _pull(options)
    elif options.target is None and options.push:
        _push(options)
    elif options.target is None:
        raise InvalidRequest("--target is needed: cpu, trn1, inf2 or trn2 (--help shows examples)")
    elif options.dry_run:
        _spec_of(options)
    else:
        _build(options, arguments)
        if options.push:
            _push(options)
    return 0


def _build(options: CompileOptions, arguments: Sequence[str]) -> None:
    from compile.build.build import build_artifact, planned_manifest, read_source
    from inference.artifact import MANIFEST

    out = _out(options)
    spec, checkpoint = _spec_of(options)
    source = read_source(checkpoint.directory)
    builder = _builder(options, spec, checkpoint)
    if options.push and not (out / MANIFEST).is_file():
        _say_if_pushed(options.push, planned_manifest(spec, source, builder))
    command = shlex.join(["python", "-m", "compile", *arguments])
    manifest = build_artifact(spec, source, builder, out, command=command, say=_say)
    if spec.fused is not None:
        from compile.fused_smoke import smoke

        print(smoke(out, manifest, _say))
    print(f"{out}: complete, digest {manifest.digest()}")


def _say_if_pushed(store: str, planned: Manifest) -> None:
    """Print the digest of an artefact that others pushed for the same inputs. It is not taken
    unasked, because an artefact is executable code.
    """
    from compile.store import find, open_store

    digest = find(planned, open_store(store))
    if digest:
        _say(
            "the same was built and pushed before: in place of building, python -m compile --pull "
            f"{shlex.quote(store)} --digest {digest} --out DIR"
        )


def _builder(options: CompileOptions, spec: CompileSpec, checkpoint: BuildCheckpoint) -> Builder:
    """The builder for the spec. Builders are imported here, because each needs its own compiler."""
    if spec.dtype == "int8":
        from compile.build.openvino_builder import OpenVinoBuilder

        return OpenVinoBuilder(spec, checkpoint.directory, checkpoint.vocabulary)
    if spec.fused is not None:
        return _fused_builder(options, spec, checkpoint)
    if spec.target == "cpu":
        from compile.build.cpu import CpuBuilder

        return CpuBuilder(spec, checkpoint.directory, checkpoint.vocabulary)
    from compile.build.neuron_builder import NeuronBuilder

    return NeuronBuilder(spec, checkpoint.directory, checkpoint.vocabulary)


def _fused_builder(
    options: CompileOptions, spec: CompileSpec, checkpoint: BuildCheckpoint
) -> Builder:
    from compile.plan.draft import draft_directory

    draft = draft_directory(options)
    if spec.target == "cpu":
        from compile.build.cpu_fused import FusedCpuBuilder

        return FusedCpuBuilder(spec, checkpoint.directory, checkpoint.vocabulary, draft)
    from compile.build.neuron_fused_builder import FusedNeuronBuilder

    return FusedNeuronBuilder(spec, checkpoint.directory, checkpoint.vocabulary, draft)


def _push(options: CompileOptions) -> None:
    from compile.store import open_store, push

    assert options.push is not None
    out = _out(options)
    pushed = push(out, open_store(options.push), _say)
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
    if options.digest is None:
        raise InvalidRequest(
            "--pull needs --digest, the one that --push printed: an artefact is executable code, "
            "nothing is taken on trust"
        )
    manifest = pull(open_store(options.pull), options.digest, _out(options), _say)
    print(f"{options.out}: {manifest.model} for {manifest.target}, every file checked")


def _out(options: CompileOptions) -> Path:
    if not options.out:
        raise InvalidRequest("--out is needed: the directory of the artefact")
    return Path(options.out)


def _spec_of(options: CompileOptions) -> tuple[CompileSpec, BuildCheckpoint]:
    """The spec, checked against the device's memory, and its checkpoint. Prints the plan."""
    from compile.plan.memory import check_fits
    from compile.plan.plan_report import describe
    from compile.request import find_checkpoint, make_request

    checkpoint = find_checkpoint(options)
    request = make_request(options, checkpoint)
    need = check_fits(checkpoint.config, request.spec)
    print(
        *request.explanation,
        *describe(request.spec, checkpoint.config, need),
        "",
        sep="\n",
        flush=True,
    )
    return request.spec, checkpoint


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
