"""AWS's Neuron packages: which versions are installed, whether they work, and what Outrider uses.

Only this module imports the packages, after it has checked their versions. Two unrelated packages
are called torch-neuronx: up to 2.9, PyTorch/XLA, which this module uses; from 2.13 on, a native
device for trn2 and trn3 (native/sdk.py). Not yet run on hardware.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import MutableMapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from inference.errors import InvalidRequest, MissingExtra

INDEX = "https://pip.repos.neuron.amazonaws.com"
COMPILER = "neuronx-cc"
PACKAGES = ("torch", "torch-neuronx", COMPILER, "neuronx-distributed")
DEVICE = Path("/dev/neuron0")
PRODUCT = Path("/sys/devices/virtual/dmi/id/product_name")
"""File that contains the instance type on EC2."""

COUNTERS = Path("/sys/devices/virtual/neuron_device")
"""Directory of the driver's counters, one folder per device and core."""

VISIBLE_CORES = "NEURON_RT_VISIBLE_CORES"
_OLDEST, _NEWEST = 28, 31
_TRANSFORMERS = "transformers>=4.51,<5"
WHEELS = (
    "torch-neuronx==2.9.0.2.15.*",
    "neuronx-cc==2.26.*",
    "neuronx_distributed==0.19.*",
    _TRANSFORMERS,
    "protobuf<7",
)
"""Packages to install by pip in an environment without AWS's packages. Hosts and docs use this."""
_INSTALL = f"pip install --extra-index-url {INDEX} {shlex.join(WHEELS)}"
_PLACEHOLDERS = (
    "without that index pip finds placeholders of the same names, which install and do not work"
)
_WHICH = (
    f"For trn1 and inf2 Outrider uses the PyTorch/XLA packages of Neuron SDK 2.{_OLDEST} to "
    f"2.{_NEWEST}; 2.{_NEWEST} is the last SDK that has them: {_INSTALL}"
)


class Sdk(NamedTuple):
    """The functions and classes of the Neuron packages that Outrider calls. For their signatures,
    see tests/nxd/test_nxd.py.
    """

    nxd_model: Any
    parallel_state: Any
    shard_checkpoint: Any
    init_on_device: Any
    column: Any
    row: Any
    embedding: Any
    gather: Any
    group: Any


def load_sdk() -> Sdk:
    """Import the packages. Raises MissingExtra, with the install command, if they are missing or
    unsuitable. The compiler may be missing: builders call sdk_versions() first.
    """
    sdk_versions(compiles=False)
    try:
        import_module("torch_neuronx")
        nxd = import_module("neuronx_distributed")
        layers = import_module("neuronx_distributed.parallel_layers.layers")
        mappings = import_module("neuronx_distributed.parallel_layers.mappings")
        groups = import_module("neuronx_distributed.parallel_layers.parallel_state")
        utilities = import_module("neuronx_distributed.utils.model_utils")
    except ImportError as error:
        raise MissingExtra(
            f"the Neuron packages are installed but cannot be imported ({error}). {_WHICH}"
        ) from error
    return Sdk(
        nxd.NxDModel,
        nxd.NxDParallelState,
        nxd.shard_checkpoint,
        utilities.init_on_device,
        layers.ColumnParallelLinear,
        layers.RowParallelLinear,
        layers.ParallelEmbedding,
        mappings.gather_from_tensor_model_parallel_region_with_dim,
        groups.get_tensor_model_parallel_group,
    )


class BuildUnits(NamedTuple):
    """The functions and classes that trace and compile graphs one by one."""

    trace: Any
    compile: Any
    compile_wlo: Any
    compile_layout_transformer: Any
    mark_weights_for_wlo: Any
    apply_layout_transformation: Any
    compilation_artifacts: Any
    wlo_artifacts: Any
    layout_transformer_artifacts: Any


def load_build_units() -> BuildUnits:
    """Import the functions that build graphs. Raises MissingExtra if the packages lack them."""
    try:
        functions = import_module("neuronx_distributed.trace.functions")
        hlo = import_module("neuronx_distributed.trace.hlo_utils")
        records = import_module("neuronx_distributed.trace.model_builder_utils")
    except ImportError as error:
        raise MissingExtra(
            f"neuronx-distributed has no functions to trace and compile with ({error}). {_WHICH}"
        ) from error
    return BuildUnits(
        functions.trace,
        functions.compile,
        functions.compile_wlo,
        functions.compile_layout_transformer,
        hlo.mark_weights_for_wlo,
        hlo.apply_layout_transformation,
        records.CompilationArtifacts,
        records.WLOArtifacts,
        records.LayoutTransformerArtifacts,
    )


def sdk_versions(*, compiles: bool = True) -> dict[str, str]:
    """Return the version of each package and of their SDK, without importing them.

    compiles: whether to include the compiler, which serving an artefact does not need

    Raises MissingExtra if a package is missing, the SDK is not supported, the compiler belongs to
    another SDK, or transformers is too new.
    """
    versions = {name: installed(name) for name in PACKAGES if compiles or name != COMPILER}
    missing = [name for name, number in versions.items() if number is None]
    if missing:
        raise MissingExtra(f"{', '.join(missing)} is not installed: {_INSTALL} ({_PLACEHOLDERS})")
    _check_transformers()
    number = str(versions["torch-neuronx"])
    sdk = _sdk_of(number)
    compiler = versions.get(COMPILER)
    if compiler is not None and not compiler.startswith(f"{_compiler_of(sdk)}."):
        raise MissingExtra(
            f"{COMPILER} {compiler} does not belong to torch-neuronx {number}, which is of Neuron "
            f"SDK {sdk} and has {COMPILER} {_compiler_of(sdk)}: {_INSTALL}. It is needed to "
            "compile; a finished artefact is served with any compiler or none"
        )
    return {name: str(number) for name, number in versions.items()} | {"neuron-sdk": sdk}


def _check_transformers() -> None:
    """Raise MissingExtra for transformers 5: neuronx-distributed needs transformers 4."""
    number = installed("transformers")
    if number is not None and int(number.split(".")[0]) >= 5:
        raise MissingExtra(
            f"transformers {number} is installed, and neuronx-distributed cannot be imported with "
            f"it: pip install '{_TRANSFORMERS}'"
        )


def _sdk_of(number: str) -> str:
    """Return the SDK release of a torch-neuronx version; raise MissingExtra if it is unsupported.

    The build number 2.N belongs to SDK 2.(N + 16): version 2.9.0.2.15.32035 is from SDK 2.31.
    """
    if number.startswith("1."):
        raise MissingExtra(
            f"torch-neuronx {number} is a placeholder that does nothing: {_INSTALL} "
            f"({_PLACEHOLDERS})"
        )
    build = re.fullmatch(r"2\.\d+\.\d+\.2\.(\d+)(\..*)?", number)
    if build is None:
        raise MissingExtra(
            f"torch-neuronx {number} is the native package for trn2 and trn3, with the same name "
            "but another interface "
            f"than the PyTorch/XLA one. {_WHICH}"
        )
    release = int(build[1]) + 16
    if not number.startswith("2.9.") or not _OLDEST <= release <= _NEWEST:
        raise MissingExtra(f"torch-neuronx {number} is of Neuron SDK 2.{release}. {_WHICH}")
    return f"2.{release}"


def _compiler_of(sdk: str) -> str:
    """Return the compiler's version in an SDK release: SDK 2.31 has neuronx-cc 2.26."""
    return f"2.{int(sdk.removeprefix('2.')) - 5}"


def installed(name: str) -> str | None:
    """Return the version of a package; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def has_device() -> bool:
    """Return whether this machine has a Neuron device and its driver."""
    return DEVICE.exists()


def instance_family() -> str | None:
    """Return the family of an EC2 instance, such as trn1 or inf2; None if unknown."""
    try:
        family = PRODUCT.read_text(encoding="ascii").strip().split(".")[0].removesuffix("n")
    except (OSError, UnicodeDecodeError):
        return None
    return family if re.fullmatch(r"(trn|inf)\d+", family) else None


def memory_peaks() -> dict[str, dict[str, int]]:
    """Return, for each core in use, the maximum bytes of each category of its memory since the
    driver was loaded (AWS, Neuron Sysfs User Guide). The categories need not peak together, so
    their sum is an upper bound. Empty if the driver reports none.
    """
    peaks = dict[str, dict[str, int]]()
    for path in sorted(COUNTERS.glob("neuron*/neuron_core*/**/device_mem/*/peak")):
        device, core = path.relative_to(COUNTERS).parts[:2]
        if size := int(path.read_text(encoding="ascii")):
            peaks.setdefault(f"{device}/{core}", {})[path.parent.name] = size
    return peaks


def logical_cores(target: str) -> int:
    """Return the physical cores per logical core: 1 before trn2, else the user's setting or 2.

    Raises InvalidRequest for an invalid setting.
    """
    if target not in ("trn2", "trn3"):
        return 1
    stated = (
        os.environ.get("NEURON_LOGICAL_NC_CONFIG")
        or os.environ.get("NEURON_RT_VIRTUAL_CORE_SIZE")
        or "2"
    )
    if stated not in ("1", "2"):
        raise InvalidRequest(f"NEURON_LOGICAL_NC_CONFIG is {stated!r}: {target} takes 1 or 2")
    return int(stated)


def core_numbers(ranges: str) -> list[int]:
    """Parse NEURON_RT_VISIBLE_CORES, such as 0-3,8, into core numbers. Raises InvalidRequest."""
    try:
        ends = [run.split("-") for run in ranges.split(",")]
        return [core for run in ends for core in range(int(run[0]), int(run[-1]) + 1)]
    except ValueError as error:
        raise InvalidRequest(
            f"{VISIBLE_CORES}={ranges}: numbers and ranges are needed, such as 0-3,8"
        ) from error


_requested: set[str] = set()
"""Numbers of cores that this process has requested from the runtime."""


def reserve_cores(needed: int, environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the number of cores that the runtime reserves; its default is all cores. It keeps the
    cores of the first load until the process ends.

    Keeps the user's settings. Raises InvalidRequest if they leave this process too few cores.
    """
    ranges = environment.get(VISIBLE_CORES)
    count = environment.get("NEURON_RT_NUM_CORES")
    try:
        visible = len(core_numbers(ranges)) if ranges else int(count or 0) or needed  # 0: all
    except ValueError as error:
        raise InvalidRequest(f"NEURON_RT_NUM_CORES={count}: a number is needed") from error
    if visible < needed and not ranges and count in _requested:
        raise InvalidRequest(
            f"this process has {count} cores since it loaded another artefact, this one needs "
            f"{needed}: load it in a process of its own, or set NEURON_RT_NUM_CORES={needed} "
            "before the first"
        )
    if visible < needed:
        name = VISIBLE_CORES if ranges else "NEURON_RT_NUM_CORES"
        raise InvalidRequest(
            f"{name}={ranges or count} gives this process {visible} cores, but the artefact needs "
            f"{needed}"
        )
    if not ranges and not count:
        environment["NEURON_RT_NUM_CORES"] = str(needed)
        _requested.add(str(needed))
