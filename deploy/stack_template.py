"""The CloudFormation template of a target, with its user data, and the parameters that it takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from deploy.deployment import Deployment
from deploy.places import SubnetInZone

TEMPLATE = Path(__file__).parent / "cfn" / "target.yaml"


def read_template() -> dict[str, Any]:
    """The template without user data."""
    template: dict[str, Any] = yaml.safe_load(TEMPLATE.read_text(encoding="utf-8"))
    return template


def template_body(user_data: str) -> str:
    """The template with user data, as JSON."""
    template = read_template()
    launch = template["Resources"]["Launch"]["Properties"]["LaunchTemplateData"]
    launch["UserData"] = {"Fn::Base64": user_data}
    return json.dumps(template)


def stack_parameters(
    deployment: Deployment, place: SubnetInZone, bucket: str, ends_at: str
) -> dict[str, str]:
    """The template's parameters.

    ends_at: when the host powers itself off, such as 2026-11-22T18:00Z
    """
    return {
        "TargetName": deployment.name,
        "Purpose": deployment.purpose,
        "InstanceType": deployment.instance.name,
        "ImageId": deployment.image_parameter,
        "VpcId": place.vpc,
        "SubnetId": place.subnet,
        "Bucket": bucket,
        "Store": deployment.store,
        "Graphs": deployment.graphs,
        "DiskGiB": str(deployment.volume_gib),
        "Port": str(deployment.port),
        "AllowCidr": deployment.allow_cidr or "",
        "Private": str(deployment.private).lower(),
        "Market": deployment.market,
        "CapacityReservation": deployment.capacity_block or "",
        "Served": deployment.served,
        "EndsAt": ends_at,
    }


def created_resources() -> list[str]:
    """Resources that a stack creates: their names and types."""
    resources = read_template()["Resources"]
    return [f"{name} ({resource['Type']})" for name, resource in resources.items()]
