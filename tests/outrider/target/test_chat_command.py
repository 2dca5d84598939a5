"""The command that a target prints, with which it can be tried."""

from __future__ import annotations

import pytest

from grpc_comm.transport import Address
from outrider.options.commands import parse
from outrider.options.roles import ServingRole
from outrider.target.target import chat_command


@pytest.mark.parametrize(
    ("flags", "bound", "command"),
    [
        ("", "127.0.0.1:50051", "outrider chat"),
        ("", "127.0.0.1:50612", "outrider chat --target_host 127.0.0.1:50612"),
        ("--insecure", "0.0.0.0:50051", "outrider chat --target_host HOST:50051"),
        (
            "--tls_cert c --tls_key k --keys_file f",
            "0.0.0.0:50051",
            "outrider chat --target_host HOST:50051 --tls_ca CA_FILE --token_file FILE",
        ),
    ],
)
def test_a_target_prints_the_command_that_chats_with_it(
    flags: str, bound: str, command: str
) -> None:
    options = parse(["target", *flags.split()])
    assert isinstance(options, ServingRole)
    host, _, port = bound.rpartition(":")
    assert chat_command(options, Address(host, int(port))) == command
