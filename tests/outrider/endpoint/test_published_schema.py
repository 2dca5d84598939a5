"""Requests that are generated from the published schema: each is answered, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import status_code_conformance

from grpc_comm.server.server import BackgroundServer
from outrider.endpoint.run import create_app
from outrider.endpoint.target_manager import TargetManager
from outrider.options.roles import ServeRole, TargetRole
from outrider.target.target import load_target
from tests.outrider.endpoint.conftest import opened
from tests.support.tiers import examples

pytestmark = pytest.mark.extended

SCHEMA = schemathesis.openapi.from_dict(create_app(TargetManager(ServeRole())).openapi())
READ: list[Any] = [result.ok() for result in SCHEMA.get_all_operations()]
OPERATIONS = {f"{operation.method} {operation.path}": operation for operation in READ}
CASES = 20
"""Requests of each operation that keep to the schema, and as many that do not."""

ASKED = [(name, GenerationMode.POSITIVE) for name in OPERATIONS] + [
    (name, GenerationMode.NEGATIVE) for name, operation in OPERATIONS.items() if operation.body
]
"""Without a body there is nothing that a request could have wrong."""


@pytest.fixture(scope="module")
def short_target() -> Iterator[str]:
    """The address of a target with short texts: the schema bounds no text's length."""
    with BackgroundServer(load_target(TargetRole(port=0, batch=2, sequence_length=48))) as server:
        yield str(server.address)


@pytest.mark.parametrize(("name", "mode"), ASKED)
def test_every_request_is_answered_or_refused(
    short_target: str, name: str, mode: GenerationMode
) -> None:
    @settings(
        max_examples=examples(CASES),
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(OPERATIONS[name].as_strategy(mode))
    def ask(case: Case[Any]) -> None:
        if isinstance(case.body, dict) and "address" in case.body:
            case.body["address"] = f" {short_target}"  # no other machine is asked
        answer = case.call(base_url=address, timeout=30)
        case.validate_response(answer, checks=[status_code_conformance])
        if answer.status_code != 503:
            case.validate_response(answer, checks=[not_a_server_error])

    with opened(short_target, patience=0) as (*_, address):
        ask()
