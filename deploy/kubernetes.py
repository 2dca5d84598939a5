"""Manifests of a target on Kubernetes: the files of deploy/k8s, filled in."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import yaml

_FILES = Path(__file__).parent / "k8s"
_ARTEFACT = "/artifact/target"

DEVICE_PLUGIN = "aws.amazon.com/neuron"
"""The resource of the Neuron device plugin: a whole device."""

Manifest = dict[str, Any]


class Artefact(NamedTuple):
    """A compiled target in S3: where, and the digest that it must have."""

    place: str
    digest: str


class Neuron(NamedTuple):
    """What a replica has of Neuron devices."""

    devices: int
    instance: str  # type of the nodes
    claimed: bool  # by dynamic resource allocation; else by the device plugin


class Workload(NamedTuple):
    """What is filled in."""

    image: str
    replicas: int
    memory: str
    artefact: Artefact | None
    neuron: Neuron | None
    flags: tuple[str, ...] = ()  # further flags of the target


def manifests(workload: Workload) -> list[Manifest]:
    """The manifests, in the order in which they are to be applied."""
    documents = _read("target.yaml")
    stateful_set = next(one for one in documents if one["kind"] == "StatefulSet")
    stateful_set["spec"]["replicas"] = workload.replicas
    pod = stateful_set["spec"]["template"]["spec"]
    (target,) = pod["containers"]
    target["image"] = workload.image
    target["args"] += workload.flags
    target["resources"]["limits"]["memory"] = workload.memory
    target["resources"]["requests"]["memory"] = workload.memory
    if workload.artefact is not None:
        _fetch(pod, target, workload.image, workload.artefact)
    if workload.neuron is None:
        return documents
    target["args"].append("--device=neuron")
    pod["nodeSelector"] = {"node.kubernetes.io/instance-type": workload.neuron.instance}
    pod["tolerations"] = [{"key": DEVICE_PLUGIN, "operator": "Exists", "effect": "NoSchedule"}]
    if not workload.neuron.claimed:
        target["resources"]["limits"][DEVICE_PLUGIN] = workload.neuron.devices
        return documents
    return [*_claim(pod, target, workload.neuron.devices), *documents]


def written(documents: list[Manifest]) -> str:
    """The manifests as one YAML stream."""
    return yaml.safe_dump_all(documents, sort_keys=False, width=100)


def _fetch(pod: Manifest, target: Manifest, image: str, artefact: Artefact) -> None:
    """Let a container before the target pull the artefact and check its digest."""
    volume = {"name": "artifact", "mountPath": "/artifact"}
    command = ["outrider", "compile", f"--pull={artefact.place}", f"--digest={artefact.digest}"]
    shared = deepcopy({name: target[name] for name in ("securityContext", "volumeMounts")})
    shared["volumeMounts"] = [
        volume,
        *(mount for mount in shared["volumeMounts"] if mount["name"] in ("state", "cache", "tmp")),
    ]
    pod["initContainers"] = [
        {
            "name": "artifact",
            "image": image,
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
