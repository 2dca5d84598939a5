"""The checks of a target's host, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Iterator

from inference.errors import OutriderError
from outrider.doctor import certificates, machine, neuron, serving
from outrider.doctor.findings import Finding, refused
from outrider.doctor.host import TargetHost
from outrider.options.roles import ServingRole
from outrider.version import outrider_version

_CHECKS = {
    "service": serving.check_service,
    "port": serving.check_ports,
    "neuron": neuron.check_neuron,
    "model": serving.check_served,
    "memory": machine.check_memory,
    "disk": machine.check_disk,
    "clock": machine.check_clock,
    "certificate": certificates.check_certificates,
    "keys": certificates.check_keys,
}
"""By the subject of what a check refuses."""


def check_host(options: ServingRole, host: TargetHost | None = None) -> Iterator[Finding]:
    """Findings of this machine as the host of a target with these options."""
    host = host or TargetHost(options)
    yield Finding("outrider", f"{outrider_version()}, the host of a target")
    for subject, check in _CHECKS.items():
        try:
            yield from check(host)
        except OutriderError as error:
            yield refused(subject, error)
