"""One way to install beside AWS's packages: what page, host and container ask pip for, and that
every module imports with that alone.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.host.user_data import user_data
from deploy.instance import NEURON_VENV
from inference.backends.neuron.sdk import INDEX, WHEELS
from tests.support.repository import ROOT
from tests.support.scratch_host import settings

PYTHON = """#!/bin/sh
shift 2
case "$1" in
    list) cat "$LISTED" ;;
    install) shift; while [ $# -gt 0 ]; do
        if [ "$1" = --requirement ]; then shift; cat "$1"; else echo "$1"; fi; shift
    done > "$ASKED" ;;
    *) mkdir -p "$1/bin" && cp "$0" "$1/bin/python" ;;
esac
"""
"""Stands in for a Python: pip's list is a file, what pip is asked for another, and so is a venv."""
AWS_BRINGS = """\
torch==2.9.1
torch-neuronx==2.9.0.2.15.32035
neuronx-cc==2.26.6360.0
libneuronxla==2.2.17544.0
transformers==4.57.6
protobuf==6.32.1
requests==2.32.0
"""
IMPORTS = """
import importlib, pkgutil, sys

class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, *more):
        refused = name.partition(".")[0] in sys.argv[1:]
        return None if refused else self.finder.find_spec(name, *more)
    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path = [Without(finder) for finder in sys.meta_path]
for room in ("inference", "grpc_comm", "compile", "deploy", "outrider"):
    for found in pkgutil.walk_packages(importlib.import_module(room).__path__, room + "."):
        importlib.import_module(found.name)
"""
"""Imports all of the product where the named top-level packages cannot be found."""


def write_program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script)
    path.chmod(0o755)


def asked_by(command: str, folder: Path, listed: str) -> list[str]:
    """What pip is asked for by a line of bash, in an environment with these packages."""
    for name in ("python", "python3"):
        write_program(folder / "bin" / name, PYTHON)
    for name in ("aws", "apt-get", "sha256sum", "snap"):
        write_program(folder / "bin" / name, f'#!/bin/sh\necho "{name} $*" >> "$NOTED"\n')
    (folder / "listed").write_text(listed)
    names = {"LISTED": "listed", "ASKED": "asked", "NOTED": "noted"}
    places = {name: str(folder / file) for name, file in names.items()}
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    subprocess.run(
        ["bash", "-euc", command], cwd=ROOT, check=True, env={**os.environ, **places, "PATH": path}
    )
    return (folder / "asked").read_text().split("\n")


def line_of(page: str) -> str:
    """The page's line of bash that installs."""
    text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
    (line,) = re.findall(r"(?m)^ *(\. \S*install\.sh && install_beside .*)$", text)
    return str(line)


def host_without_its_environment(folder: Path) -> str:
    """The part of a host's user data that installs, with its directories below a folder."""
    script = user_data(settings(venv=f"{folder}{NEURON_VENV}"))
    installing = script.partition("\n# Everything above")[0].replace("/opt/outrider", str(folder))
    return f"{installing}\ninstall_tools\ninstall_outrider"


def test_the_page_keeps_what_the_image_brings_and_bounds_what_it_lacks(tmp_path: Path) -> None:
    page = line_of("docs/trainium.md")
    brought = [line for line in AWS_BRINGS.split("\n") if line[:5] not in ("proto", "reque")]
    assert {*asked_by(page, tmp_path, AWS_BRINGS)} == {
        *("--quiet", "--disable-pip-version-check", "protobuf<7", ".[torch,aws]"),
        *brought,
    }
    listed = AWS_BRINGS.replace("6.32.1", "7.36.2").replace("transformers==4.57.6\n", "")
    asked = {*asked_by(page, tmp_path, listed)}
    assert asked >= {"protobuf==7.36.2", "transformers<5"}
    assert "protobuf<7" not in asked


def test_page_host_and_container_install_the_same_extras() -> None:
    ways = [
        line_of("docs/trainium.md"),
        line_of("docs/neuron-reference.md"),
        (ROOT / "deploy/docker/Dockerfile.neuron").read_text(),
        user_data(settings()).replace("extras=", "[").replace("\nlifetime", "]"),
    ]
    assert {re.findall(r"\[([a-z]+(?:,[a-z]+)+)\]", way)[0] for way in ways} == {"torch,aws"}


def test_pinned_wheels_and_libraries_of_aws_are_installed_only_without_the_images_environment(
    tmp_path: Path,
) -> None:
    page, host = tmp_path / "page", tmp_path / "host"
    installing = host_without_its_environment(host)
    for command, folder in ((line_of("docs/neuron-reference.md"), page), (installing, host)):
        asked = " ".join(asked_by(command, folder, "pip==25.3\n")).split()
        assert {"--extra-index-url", INDEX, *WHEELS} <= {*asked}
    libraries = "aws-neuronx-runtime-lib=2.33.* aws-neuronx-collectives=2.33.* g++"
    assert f"python3-venv {libraries}" in (host / "noted").read_text()
    page_lines = (ROOT / "docs/neuron-reference.md").read_text()
    assert libraries in page_lines.replace("'", ""), "the page installs the same"
    (code,) = re.findall(r'(?m)^python3 -c "(.*)" \\$', page_lines)  # for older images
    listed = subprocess.check_output([sys.executable, "-c", code], text=True)
    names = {*re.findall(r"(?m)^[a-z-]+", listed)}
    assert names & {"numpy", "safetensors", "torch"} == {"numpy", "safetensors"}
    (host / "noted").unlink()
    write_program(host / NEURON_VENV.lstrip("/") / "bin/python", PYTHON)
    assert "--extra-index-url" not in " ".join(asked_by(installing, host, AWS_BRINGS))
    assert "apt-get" not in (host / "noted").read_text()


def closure(wanted: Iterable[str]) -> set[str]:
    """These requirements and all that they need, by name; without AWS's, which are not here."""
    found: set[tuple[str, tuple[str, ...]]] = set()
    left = [Requirement(text) for text in wanted]
    while left:
        one = left.pop()
        key = (canonicalize_name(one.name), tuple(sorted(one.extras)))
        if key in found or "neuron" in one.name:
            continue
        found.add(key)
        for needed in map(Requirement, metadata.requires(one.name) or ()):
            extras = ({"extra": extra} for extra in ("", *one.extras))
            if needed.marker is None or any(needed.marker.evaluate(each) for each in extras):
                left.append(needed)
    return {name for name, _ in found}


def test_every_module_imports_with_the_pages_packages_alone(tmp_path: Path) -> None:
    line = asked_by(line_of("docs/trainium.md"), tmp_path, AWS_BRINGS)
    here = closure(name.replace(".", "outrider", 1) for name in line if name.startswith("."))
    refused = [
        module
        for module, owners in metadata.packages_distributions().items()
        if not {canonicalize_name(owner) for owner in owners} & {*here, "outrider"}
    ]
    assert "pytest" in refused
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, *refused], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
