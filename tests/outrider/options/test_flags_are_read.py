"""Every flag of a role is read by it; the few that need another flag are refused without it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from inference.errors import InvalidRequest
from inference.flags.group import Group, flags_of
from outrider.cli import run_role
from outrider.models.found_model import EMBEDDED
from outrider.options.roles import ROLES, FusedTargetRole

START = {"role", "config", "debug", "target", "preset"}
OF_CLIENTS: dict[str, Any] = {"region": "eu-west-1", "spot": True}
WITH_ANOTHER: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("draft", "chat", "serve", "up"), OF_CLIENTS),
    "target": {"tensor_parallel": 4},
    "verify_target": {"tensor_parallel": 4, "batch": 8},
}
"""Flags of a role that need another one."""

TEXT = {"prompt": "x", "max_new_tokens": 2}
SERVED = FusedTargetRole(port=0, batch=1, max_tree_nodes=8)


@pytest.mark.parametrize("role", ROLES)
def test_a_role_reads_its_flags(
    role: str, port: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("outrider.target.target.serve_target", lambda *_given: None)
    monkeypatch.setattr("uvicorn.Server.run", lambda *_given: None)
    monkeypatch.setattr("sys.stdin", io.StringIO("x\n"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    there: dict[str, Any] = {"port": int(port)}
    client, chatting = {**TEXT, **there}, {"max_new_tokens": 2, **there}
    serving = {**there, "http_port": 0}
    waits = {"tree_nodes": 4}  # for the draft
    runs: dict[str, list[dict[str, Any]]] = {
        "draft": [client | {"baseline": True}, client | waits],
        "fused_client": [client],
        "verify_target": [TEXT],
        "verify_draft": [TEXT],
        "target": [{"port": 0}],
        "fused_target": [{"port": 0}],
        "cert": [{"out": str(tmp_path / "certificates")}],
        "keys": [{"name": "a", "keys_file": str(tmp_path / "keys.json")}],
        "chat": [chatting, chatting | waits],
        "serve": [serving, serving | waits],
        "up": [serving | {"name": "embedded"}, serving | waits | {"name": "embedded"}],
        "pull": [{"name": str(EMBEDDED / "draft")}],
        "list": [{}],
        "doctor": [there, there | {"health": True}],
    }
    options = [ROLES[role](**given) for given in runs[role]]
    read: set[str] = set()
    original = Group.__getattribute__

    def noting(self: Group, name: str) -> Any:
        read.add(name)
        return original(self, name)

    monkeypatch.setattr(Group, "__getattribute__", noting)
    for given in options:
        run_role(given)
    monkeypatch.undo()
    fields = ROLES[role].model_fields.keys() - START
    needing = WITH_ANOTHER.get(role, {})
    assert fields - read == needing.keys() <= flags_of(ROLES[role]).keys()
    for name, value in needing.items():
        with pytest.raises(InvalidRequest):
            ROLES[role](**{name: value})
