"""`outrider deploy k8s`: prints the manifests of a target on Kubernetes."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import yaml
from annotated_types import Len
from pydantic import StringConstraints, model_validator

from inference.flags.command_line import CommandOptions
from inference.flags.group import FlagRule, Shown
from inference.flags.values import Amount, Count, ModelName, Name

_FILES = Path(__file__).parents[1] / "k8s"
_ARTEFACT = "/artifact/target"

DEVICE_PLUGIN = "aws.amazon.com/neuron"
"""The resource of the Neuron device plugin: a whole device."""

Manifest = dict[str, Any]

EXAMPLES = """examples:
  outrider deploy k8s --image outrider:cpu --form cpu                     to try it on kind
  outrider deploy k8s --image REGISTRY/outrider:neuron --artifact s3://BUCKET/DIR --digest HEX \\
      --instance trn1.2xlarge --memory 24Gi --replicas 3

They go to stdout: append `| kubectl apply -f -`.
The secrets outrider-tls and outrider-keys are yours to make: docs/fleet.md."""


class KubernetesOptions(CommandOptions, title="kubernetes"):
    """Print manifests of a target: replicas behind one name, for `kubectl apply -f -`."""

    RULES: ClassVar = (
        FlagRule("artifact", needs="digest"),
        FlagRule("digest", needs="artifact"),
        FlagRule("artifact", excludes="model", why="an artefact holds its model"),
    )

    image: Annotated[str, Len(1), Shown("IMAGE")]
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
    usd_per_hour: Amount | None = None
    """price of a replica's machine, which its target tells its clients"""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.form != "cpu" and self.artifact is None:
            raise ValueError(
                f"--form {self.form} serves a compiled target: give --artifact and --digest"
            )
        return self

    @property
    def target_flags(self) -> list[str]:
        """Flags of the target that are stated here."""
        named = {name: self.values()[name] for name in ("model", "batch", "usd_per_hour")}
        return [f"--{name}={value}" for name, value in named.items() if value is not None]


def run(options: KubernetesOptions) -> int:
    """Print the manifests."""
    print(written(manifests(options)), end="")
    return 0


def manifests(options: KubernetesOptions) -> list[Manifest]:
    """The manifests, in the order in which they are to be applied."""
    documents = _read("target.yaml")
    stateful_set = next(one for one in documents if one["kind"] == "StatefulSet")
    stateful_set["spec"]["replicas"] = options.replicas
    pod = stateful_set["spec"]["template"]["spec"]
    (target,) = pod["containers"]
    target["image"] = options.image
    target["args"] += options.target_flags
    target["resources"]["limits"]["memory"] = options.memory
    target["resources"]["requests"]["memory"] = options.memory
    if options.artifact is not None:
        _fetch(pod, target, options)
    if options.form == "cpu":
        return documents
    target["args"].append("--device=neuron")
    pod["nodeSelector"] = {"node.kubernetes.io/instance-type": options.instance}
    pod["tolerations"] = [{"key": DEVICE_PLUGIN, "operator": "Exists", "effect": "NoSchedule"}]
    if options.form == "neuron":
        target["resources"]["limits"][DEVICE_PLUGIN] = options.devices
        return documents
    return [*_claim(pod, target, options.devices), *documents]


def written(documents: list[Manifest]) -> str:
    """The manifests as one YAML stream."""
    return yaml.safe_dump_all(documents, sort_keys=False, width=100)


def _fetch(pod: Manifest, target: Manifest, options: KubernetesOptions) -> None:
    """Let a container before the target pull the artefact and check its digest."""
    volume = {"name": "artifact", "mountPath": "/artifact"}
    command = ["outrider", "compile", f"--pull={options.artifact}", f"--digest={options.digest}"]
    shared = deepcopy({name: target[name] for name in ("securityContext", "volumeMounts")})
    shared["volumeMounts"] = [
        volume,
        *(mount for mount in shared["volumeMounts"] if mount["name"] in ("state", "cache", "tmp")),
    ]
    pod["initContainers"] = [
        {
            "name": "artifact",
            "image": options.image,
            "command": command,
            "args": [f"--out={_ARTEFACT}"],
            "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}},
            **shared,
        }
    ]
    pod["volumes"].append({"name": "artifact", "emptyDir": {}})
    target["volumeMounts"].append({**volume, "readOnly": True})
    target["args"].append(f"--artifact={_ARTEFACT}")


def _claim(pod: Manifest, target: Manifest, devices: int) -> list[Manifest]:
    """Let the pod claim its devices; return the claims' template."""
    documents = _read("neuron_claim.yaml")
    (template,) = documents
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    request["exactly"]["count"] = devices
    name = template["metadata"]["name"]
    pod["resourceClaims"] = [{"name": "neuron", "resourceClaimTemplateName": name}]
    target["resources"]["claims"] = [{"name": "neuron"}]
    return documents


def _read(name: str) -> list[Manifest]:
    return list(yaml.safe_load_all((_FILES / name).read_text(encoding="utf-8")))
