"""Runs the verb: all checks, a target's health alone, or the names of its models."""

from __future__ import annotations

from outrider.doctor.findings import show
from outrider.options.roles import DoctorRole


def doctor(options: DoctorRole) -> int:
    """Print the findings. Returns 1 where one of them is a fault."""
    if options.health:
        from outrider.doctor.health import check_health

        return show(check_health(options.connection), as_json=options.as_json)
    if options.connection.list_models:
        from outrider.client.connecting import print_models

        print_models(options.connection)
        return 0
    from outrider.doctor.checks import check_all

    return show(check_all(options), as_json=options.as_json)
