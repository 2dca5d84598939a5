"""`outrider deploy k8s`: prints the manifests of a target on Kubernetes."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from annotated_types import Len
from pydantic import StringConstraints, model_validator
from typing_extensions import Self

from deploy.kubernetes import Artefact, Neuron, Workload, manifests, written
from inference.flags.command_line import CommandOptions
from inference.flags.group import Shown
from inference.flags.rules import Rule
from inference.flags.values import Count, ModelName, Name, Price

EXAMPLES = """examples:
  outrider deploy k8s --image outrider:cpu --form cpu                     to try it on kind
  outrider deploy k8s --image REGISTRY/outrider:neuron --artifact s3://BUCKET/DIR --digest HEX \\
      --instance trn1.2xlarge --memory 24Gi --replicas 3

They go to stdout: append `| kubectl apply -f -`.
The secrets outrider-tls and outrider-keys are yours to make: docs/fleet.md."""


class KubernetesOptions(CommandOptions, title="kubernetes"):
    """Print manifests of a target: replicas behind one name, for `kubectl apply -f -`."""

    RULES: ClassVar = (
        Rule("artifact", needs="digest"),
        Rule("digest", needs="artifact"),
        Rule("artifact", excludes="model", why="an artefact holds its model"),
    )

    image: Annotated[str, Len(1), Shown("IMAGE")] | None = None
    """the container image of Outrider"""
    form: Literal["neuron", "neuron-dra", "cpu"] = "neuron"
    """neuron takes devices from the device plugin, neuron-dra claims them (Kubernetes 1.34)"""
    replicas: Count = 2
    """how many"""
    instance: Name = "trn1.2xlarge"
    """type of the nodes with Neuron devices"""
    devices: Count = 1
    """Neuron devices of a replica"""
    memory: Annotated[str, StringConstraints(pattern=r"^\d+(Mi|Gi)$"), Shown("SIZE")] = "4Gi"
    """memory of a replica: what it holds when loaded, and 1Gi for floods"""
    artifact: Annotated[str, StringConstraints(pattern=r"^s3://."), Shown("S3_URL")] | None = None
    """the compiled target, as compile --push printed it"""
    digest: Name | None = None
    """the digest of --artifact"""
    model: ModelName | None = None
    """with --form cpu: the hub name of a model (default: the embedded one)"""
    batch: Count | None = None
    """rows of a replica (default: those of the artefact, or 4)"""
    usd_per_hour: Price | None = None
    """price of a replica's machine, which its target tells its clients"""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.image is None:
            raise ValueError("--image is needed: the container image of Outrider")
        if self.form != "cpu" and self.artifact is None:
            raise ValueError(
                f"--form {self.form} serves a compiled target: give --artifact and --digest"
            )
        return self

    @property
    def workload(self) -> Workload:
        """What the manifests say."""
        assert self.image is not None
        named = {"model": self.model, "batch": self.batch, "usd_per_hour": self.usd_per_hour}
        return Workload(
            image=self.image,
            replicas=self.replicas,
            memory=self.memory,
            artefact=Artefact(self.artifact, self.digest)
            if self.artifact is not None and self.digest is not None
            else None,
            neuron=Neuron(self.devices, self.instance, self.form == "neuron-dra")
            if self.form != "cpu"
            else None,
            flags=tuple(f"--{name}={value}" for name, value in named.items() if value is not None),
        )


OPTIONS = KubernetesOptions


def run(options: KubernetesOptions) -> int:
    """Print the manifests."""
    print(written(manifests(options.workload)), end="")
    return 0
