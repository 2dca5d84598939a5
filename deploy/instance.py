"""Instance types (device, machine image, volume, quota), and hosts to start on them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from inference.errors import InvalidRequest
from inference.files.artifact import NATIVE

Kind = Literal["neuron", "cuda", "cpu"]
Market = Literal["on-demand", "spot", "capacity-block"]

NEURON_IMAGE = "/aws/service/neuron/dlami/pytorch-2.9/ubuntu-24.04/latest/image_id"
"""The AWS image family with torch 2.9 and torch_neuronx on XLA, which ends with SDK 2.31. Its
newest image is compatible; those of later SDKs are not. AWS no longer lists this family.
"""
NEURON_BASE_IMAGE = "/aws/service/neuron/dlami/base/ubuntu-24.04/latest/image_id"
"""An image with only the driver and tools; the host installs pinned versions of AWS's packages."""
NEURON_VENV = "/opt/aws_neuronx_venv_pytorch_2_9"
"""The Python environment of that image. An image from --image needs the packages there, too."""
_CUDA_IMAGE = (
    "/aws/service/deeplearning/ami/{}/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
)
_CPU_IMAGE = "/aws/service/canonical/ubuntu/server/24.04/stable/current/{}/hvm/ebs-gp3/ami-id"

_TYPE = re.compile(r"([a-z]+)(\d+)([a-z-]*)\.[a-z0-9-]+")
_STANDARD = "Standard (A, C, D, H, I, M, R, T, Z)"
_QUOTAS = {
    "trn": ("Trn", "L-2C3B7624", "L-6B0D517C"),
    "inf": ("Inf", "L-1945791B", "L-B5D1601B"),
    "g": ("G and VT", "L-DB2E81BA", "L-3819A6DF"),
    "p": ("P", "L-417A185B", "L-7212CCBC"),
}
"""Quotas by family: EC2's name, and the codes for on-demand and for spot instances."""
_NEURON = ("trn1", "trn1n", "trn2", "inf2")
_CUDA_FAMILIES = ("g", "gr", "p")


def check_image(compile_target: str, image: str | None) -> None:
    """Raise InvalidRequest if the default image does not support the device and no other image is
    given.
    """
    if compile_target in NATIVE and image is None:
        raise InvalidRequest(
            f"{compile_target} runs by native PyTorch, and no machine image that has it is known "
            f"here: {NEURON_IMAGE} has PyTorch/XLA. --image names one of your own, with the "
            "packages of docs/neuron-reference.md in an environment at the path that hosts use, "
            f"{NEURON_VENV}"
        )


class Quota(NamedTuple):
    """A limit of an account in a region."""

    name: str  # as in the Service Quotas console
    code: str


@dataclass(frozen=True)
class InstanceKind:
    """An EC2 instance type. Raises InvalidRequest if it cannot serve a target."""

    name: str  # such as trn1.2xlarge

    def __post_init__(self) -> None:
        if not _TYPE.fullmatch(self.name):
            raise InvalidRequest(f"--instance {self.name}: a type such as trn1.2xlarge is needed")
        if self.family in ("trn", "inf") and self.generation not in _NEURON:
            raise InvalidRequest(
                f"--instance {self.name} is not supported: use one of trn1, trn2 or inf2"
            )

    @property
    def generation(self) -> str:
        return self.name.partition(".")[0]

    @property
    def family(self) -> str:
        return re.split(r"\d", self.generation)[0]

    @property
    def kind(self) -> Kind:
        if self.family in ("trn", "inf"):
            return "neuron"
        return "cuda" if self.family in _CUDA_FAMILIES else "cpu"

    @property
    def compile_target(self) -> str:
        """The value of `outrider compile --target` for this instance."""
        return self.generation.removesuffix("n") if self.kind == "neuron" else "cpu"

    @property
    def arm(self) -> bool:
        """Whether it has AWS's Arm processors, as m7g and g5g do."""
        return "g" in re.split(r"\d+", self.generation)[1]

    @property
    def image(self) -> str:
        """The public SSM parameter with the id of the default machine image."""
        if self.kind == "neuron":
            return NEURON_IMAGE
        if self.kind == "cuda":
            return _CUDA_IMAGE.format("arm64" if self.arm else "x86_64")
        return _CPU_IMAGE.format("arm64" if self.arm else "amd64")

    @property
    def venv(self) -> str | None:
        """The image's Python environment with the device's packages; None if it has none."""
        return NEURON_VENV if self.kind == "neuron" else None

    @property
    def disk_gib(self) -> int:
        """Size of the volume: the image, the environment, a model or artefact, and spare room."""
        return {"neuron": 250, "cuda": 200, "cpu": 60}[self.kind]

    def quota(self, market: Market) -> Quota:
        """Return the EC2 quota that applies, in virtual CPUs."""
        name, on_demand, spot = _QUOTAS.get(self.family, (_STANDARD, "L-1216C47A", "L-34B43A08"))
        if market == "spot":
            return Quota(f"All {name} Spot Instance Requests", spot)
        return Quota(f"Running On-Demand {name} instances", on_demand)


@dataclass(frozen=True)
class Host:
    """An instance to start, in a CloudFormation stack of its own."""

    name: str  # of the target or the job
    region: str
    instance: InstanceKind
    market: Market
    image: str  # public SSM parameter of the machine image
    disk_gib: int
    lifetime_hours: float
    parameters: Mapping[str, str] = field(default_factory=dict)  # additional ones of the template

    @property
    def stack(self) -> str:
        return stack_name(self.name)

    @property
    def template_parameters(self) -> dict[str, str]:
        """The template's parameters except network, bucket and end time."""
        return {
            "TargetName": self.name,
            "InstanceType": self.instance.name,
            "ImageId": self.image,
            "DiskGiB": str(self.disk_gib),
            "Market": self.market,
            **self.parameters,
        }


def stack_name(target: str) -> str:
    """Return the name of the CloudFormation stack of a target or job."""
    return f"outrider-{target}"
