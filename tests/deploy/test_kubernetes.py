"""The manifests for Kubernetes are valid, say what our own command line takes, and keep to the
rules of the `restricted` pod security standard.
"""

from __future__ import annotations

import re
from typing import Any

import kubernetes_validate
import pytest
import yaml

from compile.compile_options import parse as parse_compile
from outrider.options.parsing import parse
from outrider.options.roles import TargetRole
from tests.support.commands import Run
from tests.support.repository import ROOT

VERSION = "1.37"
ARTEFACT = ["--artifact", "s3://bucket/artefacts", "--digest", "ab" * 32]
FORMS = {
    "cpu": ["--form", "cpu", "--model", "org/name", "--batch", "8"],
    "cpu artefact": ["--form", "cpu", *ARTEFACT],
    "neuron": ["--instance", "inf2.xlarge", "--devices", "2", *ARTEFACT],
    "neuron-dra": ["--form", "neuron-dra", "--devices", "2", *ARTEFACT],
}

Manifest = dict[str, Any]


def printed(run: Run, form: str) -> dict[str, Manifest]:
    """The manifests that the command prints, by kind."""
    text = run("deploy", "k8s", "--image", "registry/outrider:1", *FORMS[form]).out
    assert "&id" not in text, "aliases are hard to read"
    return {one["kind"]: one for one in yaml.safe_load_all(text)}


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, run: Run) -> dict[str, Manifest]:
    return printed(run, request.param)


def pod_of(documents: dict[str, Manifest]) -> Manifest:
    pod: Manifest = documents["StatefulSet"]["spec"]["template"]["spec"]
    return pod


def target_of(documents: dict[str, Manifest]) -> Manifest:
    (target,) = pod_of(documents)["containers"]
    assert isinstance(target, dict)
    return target


def options_of(documents: dict[str, Manifest]) -> TargetRole:
    """What our own command line makes of the container's arguments."""
    target = target_of(documents)
    assert target["command"] == ["outrider", "target"]
    options = parse(["target", *target["args"]])
    assert isinstance(options, TargetRole)
    return options


def test_every_form_is_valid(form: dict[str, Manifest]) -> None:
    for document in form.values():
        kubernetes_validate.validate(document, VERSION, strict=True)


def test_the_containers_arguments_are_flags_of_our_own(form: dict[str, Manifest]) -> None:
    options = options_of(form)
    for container in pod_of(form).get("initContainers", []):
        outrider, verb, *flags = container["command"]
        assert (outrider, verb) == ("outrider", "compile")
        pulled = parse_compile([*flags, *container["args"]])
        assert (pulled.pull, str(pulled.out)) == ("s3://bucket/artefacts", options.artifact)


def test_probes_and_service_ask_where_the_target_listens(form: dict[str, Manifest]) -> None:
    options, target = options_of(form), target_of(form)
    ports = {port["name"]: port["containerPort"] for port in target["ports"]}
    assert ports == {"grpc": options.port, "metrics": options.metrics_port}
    assert options.host == options.metrics_host == "0.0.0.0"
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert target[probe]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    (port,) = form["Service"]["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (options.port, "grpc")
    assert form["Service"]["spec"]["clusterIP"] == "None"
    rules = form["NetworkPolicy"]["spec"]["ingress"]
    assert [rule["ports"][0]["port"] for rule in rules] == ["grpc", "metrics"]


def test_a_pod_lives_longer_than_its_target_drains(form: dict[str, Manifest]) -> None:
    assert pod_of(form)["terminationGracePeriodSeconds"] >= options_of(form).sessions.grace + 15


def test_every_selector_finds_the_pods(form: dict[str, Manifest]) -> None:
    labels = form["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    assert form["Service"]["spec"]["selector"] == labels
    for kind, name in [("StatefulSet", "selector"), ("PodDisruptionBudget", "selector")]:
        assert form[kind]["spec"][name]["matchLabels"] == labels
    assert form["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    assert form["StatefulSet"]["spec"]["serviceName"] == form["Service"]["metadata"]["name"]


def test_secrets_are_mounted_where_the_target_reads_them_and_others_may_not(
    form: dict[str, Manifest],
) -> None:
    options, pod = options_of(form), pod_of(form)
    mounts = {mount["name"]: mount["mountPath"] for mount in target_of(form)["volumeMounts"]}
    assert str(options.keys_file).startswith(mounts["keys"])
    assert str(options.tls_key).startswith(mounts["tls"])
    secrets = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
    assert {secret["defaultMode"] for secret in secrets} == {0o440}
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]


def test_pods_keep_to_the_restricted_standard_and_write_to_volumes_only(
    form: dict[str, Manifest],
) -> None:
    pod = pod_of(form)
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not pod["automountServiceAccountToken"]
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "memory" in container["resources"]["limits"]
        named = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= named


def test_all_that_the_image_writes_to_is_a_volume_and_its_user_is_the_pods(
    form: dict[str, Manifest],
) -> None:
    """The image makes its directories for its user; the root of a pod is read-only."""
    dockerfile = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
    user = form["StatefulSet"]["spec"]["template"]["spec"]["securityContext"]
    assert f"USER {user['runAsUser']}:{user['runAsGroup']}\n" in dockerfile
    owned = re.search(r"install -d .*? -g outrider (.*)", dockerfile)
    assert owned is not None
    for container in [*pod_of(form)["containers"], *pod_of(form).get("initContainers", [])]:
        written = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert {*owned[1].split(), "/tmp"} <= written


def test_devices_come_from_the_plugin_or_by_a_claim_and_never_both(run: Run) -> None:
    plugin, claim = (printed(run, form) for form in ("neuron", "neuron-dra"))
    assert target_of(plugin)["resources"]["limits"]["aws.amazon.com/neuron"] == 2
    assert "claims" not in target_of(plugin)["resources"]
    assert "aws.amazon.com/neuron" not in target_of(claim)["resources"]["limits"]
    (wanted,) = pod_of(claim)["resourceClaims"]
    template = claim["ResourceClaimTemplate"]
    assert wanted["resourceClaimTemplateName"] == template["metadata"]["name"]
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["deviceClassName"] == "neuron.aws.com"
    assert request["exactly"]["count"] == 2
    assert options_of(plugin).device == options_of(claim).device == "neuron"
    chosen = pod_of(plugin)["nodeSelector"]
    assert chosen == {"node.kubernetes.io/instance-type": "inf2.xlarge"}


REFUSED: list[tuple[str, ...]] = [
    ("", "--image"),
    ("--image x", "--form neuron", "--artifact"),
    ("--image x --artifact s3://a/b", "--artifact", "--digest"),
    ("--image x --artifact a --digest b", "--artifact a"),
    ("--image x --form cpu --memory 4", "--memory 4"),
    (f"--image x --model m {' '.join(ARTEFACT)}", "--artifact", "--model"),
]


@pytest.mark.parametrize("refused", REFUSED)
def test_what_is_missing_is_said_in_one_line(refused: tuple[str, ...], run: Run) -> None:
    flags, *shown = refused
    run("deploy", "k8s", *flags.split()).assert_usage_error(*shown)
