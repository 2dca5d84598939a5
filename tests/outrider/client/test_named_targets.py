"""Targets by name: what is kept of them, who may read it, and what --target stands for."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpc_comm.client.named_targets import (
    NamedTarget,
    find_target,
    forget_target,
    named_targets,
    read_target,
)
from inference.errors import Unavailable
from outrider.client.connecting import connect_target
from outrider.options.roles import ChatRole
from tests.support.refusals import assert_refused
from tests.support.wire_fixtures import free_port


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NamedTarget:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    target = NamedTarget("demo", "127.0.0.1:50151", "us-east-1")
    target.write()
    target.write_secret("ca.pem", b"an authority")
    target.write_secret("token", b"a-token\n")
    return target


def test_a_named_target_is_read_as_it_was_written_until_it_is_forgotten(demo: NamedTarget) -> None:
    assert read_target("demo") == demo
    assert named_targets() == ["demo"]
    forget_target("demo")
    assert find_target("demo") is None
    assert not demo.directory.exists()


def test_what_is_kept_is_for_its_owner_alone(demo: NamedTarget) -> None:
    modes = {stat.S_IMODE(path.stat().st_mode) for path in demo.directory.iterdir()}
    assert modes == {0o600}
    assert stat.S_IMODE(demo.directory.stat().st_mode) == 0o700


def test_the_name_stands_for_address_authority_and_token(demo: NamedTarget) -> None:
    options = ChatRole(target="demo")
    assert [str(endpoint) for endpoint in options.endpoints] == ["127.0.0.1:50151"]
    assert options.tls_ca == str(demo.ca_file)
    assert options.token_file == str(demo.token_file)
    assert options.replace(patience=7).endpoints == options.endpoints
    unnamed = options.replace(target=None)
    assert unnamed.tls_ca == str(demo.ca_file)
    assert unnamed.replace(target_host="127.0.0.1:1").target_host == "127.0.0.1:1"
    places: list[tuple[dict[str, Any], bool]] = [
        ({}, True),
        ({"target_host": "localhost,[::1]:7"}, True),
        ({"target_host": "localhost,dns:///there"}, False),
        ({"target": "demo"}, False),
    ]
    for place, is_local in places:
        assert ChatRole(**place).is_local is is_local


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ({"target": "demi"}, ["demi", "did you mean demo"]),
        ({"target": "demo", "target_host": "there:1"}, ["--target demo", "--target_host"]),
        ({"target": "demo", "token_file": "mine"}, ["--target demo", "--token_file"]),
    ],
)
def test_an_unknown_name_and_a_second_place_beside_the_name_are_refused(
    place: dict[str, Any], words: list[str], demo: NamedTarget
) -> None:
    assert_refused(lambda: ChatRole(**place), words)


@pytest.mark.parametrize("name", ["", "Demo", "a/b", "..", "a--b", "a" * 32])
def test_what_is_no_name_is_refused(name: str) -> None:
    assert_refused(lambda: find_target(name), ["a target's name has"])


def test_a_target_behind_a_closed_tunnel_is_reported_with_the_command_that_helps(
    demo: NamedTarget,
) -> None:
    replace(demo, address=f"127.0.0.1:{free_port()}").write()
    with (
        pytest.raises(Unavailable, match="`outrider deploy status demo`"),
        connect_target(ChatRole(target="demo")),
    ):
        pass
