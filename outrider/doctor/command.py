"""Runs the verb: a target's health, a target's host, or the draft here and the way to a target."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from inference.backends.neuron_sdk import has_device
from outrider.doctor.findings import show
from outrider.options import parse
from outrider.options.roles import DoctorRole, ServingRole

HOST_CONFIG = Path("/etc/outrider/target.yaml")
"""Where a host that `deploy up` made has its target's options."""

_OF_A_CLIENT = {"target", "target_host", "draft_model"}
"""Fields that only a client's machine gives."""


def doctor(options: DoctorRole) -> int:
    """Print the findings. Returns 1 where one of them is a fault."""
    if options.health:
        from outrider.doctor.health import check_health

        return show(check_health(options), as_json=options.as_json)
    if options.list_models:
        from outrider.connecting import print_models

        print_models(options)
        return 0
    served = _served_here(options)
    if served is not None:
        from outrider.doctor.target_host import check_host

        return show(check_host(served), as_json=options.as_json)
    from outrider.doctor.draft_and_link import check_draft_and_link

    return show(check_draft_and_link(options), as_json=options.as_json)


def _served_here(options: DoctorRole) -> ServingRole | None:
    """Options of the target that this machine serves or is to serve. None for a client's machine:
    it has neither a target's file nor a Neuron device, or a client's flags are given.
    """
    if options.target_config:
        return cast(ServingRole, parse(["--config", options.target_config]))
    if options.model_fields_set & _OF_A_CLIENT:
        return None
    if HOST_CONFIG.exists():
        return cast(ServingRole, parse(["--config", str(HOST_CONFIG)]))
    return cast(ServingRole, parse(["--role", "target"])) if has_device() else None
