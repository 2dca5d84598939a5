"""AWS's compiler: its platform, its flags, its files, and the reasons of failures.

A host without a device gets the platform from NEURON_PLATFORM_TARGET_OVERRIDE. The format of the
compiler's output is not documented; it is parsed as neuronx-cc 2.22 wrote it in published logs.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from compile.spec import CompileSpec
from inference.backends.neuron.sdk import (
    Sdk,
    has_device,
    instance_family,
    load_sdk,
    logical_cores,
    sdk_versions,
)
from inference.command import say
from inference.errors import BadArtifact, InvalidRequest

T = TypeVar("T")

OVERRIDE = "NEURON_PLATFORM_TARGET_OVERRIDE"
PLATFORMS = {"trn1": "trn1", "inf2": "trn1"}
"""The platform for which each target is compiled."""

_OURS = ("--target", "--lnc")


_ERRORS = (r"\[NCC_\w+\].*", r"ERROR.*", r".*[Ee]rror:.*", r".*Too many instructions.*")
"""Patterns of lines with the reason of a failed compilation, most specific first."""
_REASON = re.compile(r"NCC_\w+|Too many instructions")
_LONGEST = 300  # maximum characters of an error


class Toolchain:
    """The compiler's flags and host requirements for a spec's artefact, and AWS's packages, which
    are set to the spec's target when first used.
    """

    def __init__(self, spec: CompileSpec) -> None:
        assert spec.target in PLATFORMS, "other targets have other builders"
        self._target, self.logical = spec.target, logical_cores(spec.target)
        self.flags = compiler_flags(spec, self.logical)
        self.host = {
            "family": spec.target,
            "logical_cores": str(self.logical),
            "interface": "model_builder",
        }

    @cached_property
    def sdk(self) -> Sdk:
        sdk_versions()
        aim(self._target)
        return load_sdk()

    @contextmanager
    def working(self) -> Iterator[Path]:
        """Yield the compiler's directory. If the compiler fails, keep it and raise BadArtifact with
        its path: CompilerDied if neither the error nor the logs give a reason.
        """
        work = Path(tempfile.mkdtemp(prefix="outrider-neuron-"))
        try:
            yield work
        except RuntimeError as error:
            logs = (path.read_text("utf-8", "replace") for path in work.rglob("*.txt"))
            failed = BadArtifact if any(map(gave_reason, (_cause(error), *logs))) else CompilerDied
            raise failed(
                f"the Neuron compiler failed: {_cause(error)}. Its files and logs are in {work}"
            ) from error
        shutil.rmtree(work)


def compiler_flags(spec: CompileSpec, logical: int) -> dict[str, str]:
    """Return neuronx-cc's flags: Outrider's, then the spec's. The spec may override all but the
    target and its cores.
    """
    flags = {
        "--target": spec.target,
        "--lnc": str(logical),
        "--model-type": "transformer",
        "--auto-cast": "none",
        "--enable-saturate-infinity": "",
    }
    reserved = [flag for flag in _OURS if flag in spec.compiler_flags]
    if reserved:
        raise InvalidRequest(
            f"compiler flag {reserved[0]} follows from --target and NEURON_LOGICAL_NC_CONFIG: "
            "leave it out"
        )
    requested = {
        f"-O{value}" if flag == "--optlevel" else flag: "" if flag == "--optlevel" else value
        for flag, value in spec.compiler_flags.items()
    }
    if not any(flag.startswith("-O") for flag in requested):
        flags["-O2"] = ""
    return flags | requested


def render(flags: Mapping[str, str]) -> str:
    """Format the flags for the compiler's command line, quoted if a value contains blanks."""
    words = {
        flag: f"{flag} {value}" if flag == "--target" else f"{flag}={shlex.quote(value)}"
        for flag, value in flags.items()
        if value
    }
    return " ".join(words.get(flag, flag) for flag in flags)


def aim(target: str) -> None:
    """Set the SDK's platform on a host without a device. Settings by the user are never changed."""
    platform, stated = PLATFORMS[target], os.environ.get(OVERRIDE)
    if stated:
        if PLATFORMS.get(stated, stated) != platform:
            raise InvalidRequest(
                f"{OVERRIDE} is {stated}, but --target is {target}: set it to {platform} or unset "
                "it"
            )
        return
    if has_device():
        family = instance_family()
        if family is not None and PLATFORMS.get(family, family) != platform:
            raise InvalidRequest(
                f"this is a {family} machine: to compile for {target} on it, set "
                f"{OVERRIDE}={platform} first"
            )
        return
    packages = ("torch_neuronx", "neuronx_distributed", "torch_xla")
    imported = [name for name in packages if name in sys.modules]
    if imported:
        raise InvalidRequest(
            f"there is no Neuron device here and {imported[0]} was imported already: set "
            f"{OVERRIDE}={platform} before starting"
        )
    os.environ[OVERRIDE] = platform
    print(
        f"no Neuron device here: compiling for {target} with {OVERRIDE}={platform}, set for this "
        "process",
        file=sys.stderr,
    )


def _cause(error: BaseException) -> str:
    """Return the message of the innermost error, which is the compiler's own."""
    while error.__cause__ is not None:
        error = error.__cause__
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


class CompilerDied(BadArtifact):
    """The compiler ended without a reason: it was killed, or crashed."""


def gave_reason(text: str) -> bool:
    """Return whether a failed compiler's output has a reason, so that it would fail again."""
    return _REASON.search(text) is not None


def once_more(compile_graph: Callable[[], T]) -> T:
    """Compile a graph. If the compiler dies without a reason, try again once."""
    try:
        return compile_graph()
    except CompilerDied as died:
        say(f"{died}. It gave no reason: it is tried once more")
        return compile_graph()


def first_error(text: str) -> str:
    """Return the most informative line of a failed compiler's output."""
    for pattern in _ERRORS:
        if match := re.search(pattern, text):
            return match[0].strip()[:_LONGEST]
    lines = text.split("\n")
    return next((line.strip()[:_LONGEST] for line in reversed(lines) if line.strip()), "no output")
