"""A Neuron host: driver, packages of the SDK, devices, cores, and who holds them.

Not yet run on hardware: what neuron-ls prints is as AWS's own projects read it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from inference.backends import neuron_sdk
from inference.errors import OutriderError
from outrider.doctor.findings import Finding, fault, refused, warning
from outrider.doctor.host import TargetHost

_LS = "/opt/aws/neuron/bin/neuron-ls"
_DRIVER = "/sys/module/neuron/version"
_INSTALL_DRIVER = (
    "apt-get install aws-neuronx-dkms, or take AWS's image for Neuron; in a container pass the "
    "device through (--device /dev/neuron0)"
)


def check_neuron(host: TargetHost) -> Iterator[Finding]:
    """Nothing on a host that has no Neuron device and needs none."""
    if not _wanted(host):
        return
    yield from _driver(host)
    sdk = None
    try:
        found = neuron_sdk.sdk_versions()
    except OutriderError as error:
        yield refused("packages", error)
    else:
        sdk = found.pop("neuron-sdk")
        versions = ", ".join(f"{name} {number}" for name, number in found.items())
        yield Finding("packages", f"Neuron SDK {sdk}: {versions}")
    yield from _fits_driver(host, sdk)
    yield from _cores(host)
    yield from _instance(host)


def _wanted(host: TargetHost) -> bool:
    manifest = host.manifest
    return (
        host.options.device.startswith("neuron")
        or (manifest is not None and manifest.target != "cpu")
        or neuron_sdk.has_device()
        or neuron_sdk.instance_family() is not None
    )


def _driver(host: TargetHost) -> Iterator[Finding]:
    version = host.text(_DRIVER)
    if not neuron_sdk.has_device():
        loaded = f"the driver {version} is loaded" if version else "no driver is loaded"
        yield fault("driver", f"{neuron_sdk.DEVICE} is missing, {loaded}", _INSTALL_DRIVER)
    elif version is None:
        yield warning("driver", f"{_DRIVER} does not tell its version", "modinfo neuron tells it")
    else:
        yield Finding("driver", version)


def _fits_driver(host: TargetHost, sdk: str | None) -> Iterator[Finding]:
    """AWS's rule (release notes of SDK 2.30 and 2.31): from SDK 2.30 on the runtime needs a driver
    above 2.26, and a driver from 2.29 on needs the runtime of SDK 2.31.
    """
    number = re.match(r"2\.(\d+)", host.text(_DRIVER) or "")
    if sdk is None or number is None:
        return
    driver, release = int(number[1]), int(sdk.split(".")[1])
    if release >= 30 and driver <= 26:
        text = f"driver 2.{driver} is too old for the runtime of SDK {sdk}"
        yield fault("driver", text, "apt-get install --only-upgrade aws-neuronx-dkms, then reboot")
    elif release < 31 and driver >= 29:
        text = f"driver 2.{driver} is too new for the runtime of SDK {sdk}"
        yield fault("driver", text, "install SDK 2.31, or a driver below 2.29")


def _cores(host: TargetHost) -> Iterator[Finding]:
    devices = _devices(host)
    if devices is None:
        remedy = "apt-get install aws-neuronx-tools, or run it by hand to see its error"
        yield warning("cores", f"{_LS} does not answer", remedy)
        return
    cores = sum(_logical(device) for device in devices)
    yield Finding("cores", f"{cores} on {len(devices)} devices")
    need = host.manifest.tensor_parallel if host.manifest else 0
    if need > cores:
        text = f"the artefact takes {need} cores, this machine has {cores}"
        yield fault("cores", text, "take a larger instance, or build with fewer --tensor_parallel")
    for device in devices:
        for process in device.get("neuron_processes") or ():
            yield from _holder(device, process)


def _holder(device: dict[str, Any], process: dict[str, Any]) -> Iterator[Finding]:
    """A process that holds a device; a target of ours is no fault."""
    pid, command = process.get("pid"), str(process.get("command", "?"))
    said = f"device {device.get('neuron_device')} is held by process {pid}: {command[:60]}"
    if "outrider" in command or "main.py" in command:
        yield Finding("cores", said)
    elif not command.startswith(("neuron-ls", "neuron-monitor", "neuron-top")):
        remedy = f"end it (kill {pid}), or give each its own NEURON_RT_VISIBLE_CORES"
        yield warning("cores", said, remedy)


def _logical(device: dict[str, Any]) -> int:
    """Cores that a program sees: on trn2 two physical ones make one."""
    return int(device.get("nc_count", 0)) // int(device.get("logical_neuroncore_config") or 1)


def _devices(host: TargetHost) -> list[dict[str, Any]] | None:
    said = host.answer(_LS, "--json-output", "--show-all-procs")
    try:
        devices = json.loads(said or "")
    except ValueError:
        return None
    if not isinstance(devices, list) or not all(isinstance(one, dict) for one in devices):
        return None
    return devices


def _instance(host: TargetHost) -> Iterator[Finding]:
    """Whether the artefact was built for this family of instances."""
    family = neuron_sdk.instance_family()
    if host.manifest is None or family is None:
        return
    if host.manifest.target == family:
        yield Finding("instance", f"{family}, as the artefact wants")
    else:
        text = f"{family}, the artefact is for {host.manifest.target}"
        yield fault("instance", text, f"build it with outrider compile --target {family}")
