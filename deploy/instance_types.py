"""Instance types: their accelerators and memory, bundled for targets and asked of EC2 for others.

What EC2 itself reports wrongly, or does not report, is stated here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.aws import Aws, aws_refusals, error_code
from inference.errors import InvalidRequest
from inference.file_model import Count, Positive, Record, Size, Text, read_record
from inference.json_file import read_json

DEVICE_GIB = {"Trainium2": 96.0}
"""Memory of a device where EC2 reports another. It says 512 GiB for Trainium2; Neuron's own
documentation says 96, which make the 1.5 TiB of a trn2.48xlarge.
"""

WITHOUT_ON_DEMAND = frozenset({"trn2.3xlarge", "trn2.48xlarge", "trn2u.48xlarge"})
"""Types that are sold as capacity blocks and spot only; the price list's rows say nothing of it."""

_BUNDLED = Path(__file__).parent / "data" / "instance_types.json"


@dataclass(frozen=True)
class InstanceType(Record):
    """An instance type."""

    name: Text
    vcpus: Count
    memory_gib: Positive  # of the host
    accelerator: Text = ""
    devices: Size = 0
    cores: Size = 0  # NeuronCores of a device; 0 for GPUs
    device_gib: float = 0.0  # memory of one device

    @property
    def accelerators(self) -> str:
        """The accelerators in words; empty where there are none."""
        if not self.devices:
            return ""
        cores = f"{self.devices * self.cores} cores, " if self.cores else ""
        return f"{self.devices} {self.accelerator}: {cores}{self.devices * self.device_gib:g} GiB"


def bundled_types() -> dict[str, InstanceType]:
    """The instance types that a target may run on, by name."""
    raw = read_json(_BUNDLED, InvalidRequest)
    return {one.name: one for one in (read_record(row, InstanceType) for row in raw.items())}


def find_type(aws: Aws, name: str) -> InstanceType:
    """The instance type: bundled, else as EC2 describes it. Raises InvalidRequest for a type that
    EC2 does not know.
    """
    bundled = bundled_types()
    if name in bundled:
        return bundled[name]
    client = aws.client("ec2")
    with aws_refusals():
        try:
            found = client.describe_instance_types(InstanceTypes=[name])
        except client.exceptions.ClientError as error:
            if error_code(error) != "InvalidInstanceType":
                raise
            raise InvalidRequest(f"{aws.region} has no instance type {name}") from error
    return read_type(found["InstanceTypes"][0])


def read_type(described: Mapping[str, Any]) -> InstanceType:
    """An instance type from EC2's description of it, with what EC2 reports wrongly corrected."""
    neuron, gpus = described.get("NeuronInfo") or {}, described.get("GpuInfo") or {}
    host = (
        described["InstanceType"],
        described["VCpuInfo"]["DefaultVCpus"],
        described["MemoryInfo"]["SizeInMiB"] / 1024,
    )
    found = [*neuron.get("NeuronDevices", ()), *gpus.get("Gpus", ())]
    if not found:
        return InstanceType(*host)
    device = found[0]
    said = device["MemoryInfo"]["SizeInMiB"] / 1024
    return InstanceType(
        *host,
        accelerator=device["Name"],
        devices=device["Count"],
        cores=device.get("CoreInfo", {}).get("Count", 0),
        device_gib=DEVICE_GIB.get(device["Name"], said),
    )
