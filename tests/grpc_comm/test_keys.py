"""A keys file lists the callers and their limits; anyone else is refused."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import os
import re
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from grpc_comm.keys import WATCH_SECONDS, Key, Keys, make_key
from grpc_comm.security import SecurityOptions, channel_security
from grpc_comm.server.guard import server_security
from grpc_comm.transport import Address
from outrider.cli import main
from tests.support.refusals import assert_refused
from tests.support.repository import ROOT

HERE = Address("127.0.0.1", 0)


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def entry(name: str, token: str | None = None, **limits: Any) -> dict[str, Any]:
    return {"name": name, "token_sha256": digest(token or f"token of {name}"), **limits}


def write(path: Path, *entries: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"keys": list(entries)}))
    path.chmod(0o600)
    return path


def bearer(token: str) -> list[tuple[str, str]]:
    return [("user-agent", "any"), ("authorization", f"Bearer {token}")]


def identify(keys: Keys, metadata: Any) -> Key | None:
    """The key whose token a call's metadata carries; None where the call is refused."""
    grant = keys.grant(metadata)
    return None if grant is None else grant.key


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(
        tmp_path / "keys.json",
        entry("alice", sessions=4, sequence_length=4096, tree_nodes=32, message_bytes=1048576),
        entry("bob"),
    )


def test_a_token_names_its_tenant_and_limits(file: Path) -> None:
    keys = Keys.read(file)
    assert keys.required
    assert identify(keys, bearer("token of alice")) == Key(
        "alice", sessions=4, sequence_length=4096, tree_nodes=32, message_bytes=1048576
    )
    assert identify(keys, bearer("token of bob")) == Key("bob")


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        [],
        [("authorization", "token of alice")],
        [("authorization", "Bearer ")],
        [("authorization", "Bearer token of alic")],
        [("authorization", "Bearer token of alice ")],
        [("authorization", "bearer token of alice")],
        [("authorization", "Bearer " + digest("token of alice"))],
        [("authorization", b"Bearer \xff\xfe")],
        [("authorization", b"\0")],
        [("authorization", "Bearer sch\u00fcssel")],
        [("x-authorization", "Bearer token of alice")],
        [("authorization", "Bearer wrong"), ("authorization", "Bearer token of alice")],
    ],
)
def test_nothing_but_exactly_one_whole_token_lets_in(metadata: Any, file: Path) -> None:
    assert identify(Keys.read(file), metadata) is None


def test_a_single_token_is_the_default_tenants_and_without_keys_everyone_is_the_nameless() -> None:
    keys = Keys.single("open-sesame")
    assert identify(keys, bearer("open-sesame")) == Key("default")
    assert identify(keys, bearer("open")) is None
    assert "open-sesame" not in repr(vars(keys))
    assert_refused(lambda: Keys.single(""), ["token"])
    assert not Keys.open().required
    assert identify(Keys.open(), []) == identify(Keys.open(), bearer("anything")) == Key("")


def test_a_token_is_compared_with_every_digest_and_a_missing_token_with_none(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[bytes] = []
    constant_time = hmac.compare_digest

    def compare(known: bytes, given: bytes) -> bool:
        compared.append(known)
        return constant_time(known, given)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    keys = Keys.read(file)
    everyone = [bytes.fromhex(digest(f"token of {name}")) for name in ("alice", "bob")]
    for token in ("token of alice", "token of bob", "wrong"):
        compared.clear()
        identify(keys, bearer(token))
        assert compared == everyone
    compared.clear()
    for metadata in (None, [], bearer(""), [("authorization", "Basic x")], bearer("a") * 2):
        assert identify(keys, metadata) is None
    assert compared == []


def test_an_entry_for_the_empty_token_is_refused_and_lets_nobody_in(tmp_path: Path) -> None:
    empty = {"name": "anyone", "token_sha256": hashlib.sha256(b"").hexdigest()}
    path = write(tmp_path / "keys.json", entry("alice"))
    keys = Keys.read(path)
    write(path, entry("alice"), empty)
    for metadata in ([], bearer("")):
        assert identify(keys, metadata) is None
    assert_refused(lambda: Keys.read(path), ["keys[1]", "token_sha256"])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"keys": ' + "[" * 100_000, "is not JSON"),
        ('{"keys": [' + "9" * 100_000 + "]}", "is not JSON"),
        ('{"keys": [\0]}', "is not JSON"),
        ("{\xff", "is not JSON"),
        ("[]", "is []: it should be an object"),
        ('{"keys": {}}', "field keys is {}"),
        ('{"keys": null}', "field keys is None"),
        ('{"keys": [], "version": 1}', "unknown field 'version'"),
        ("alice", "field keys[0] is 'alice': it should be an object"),
        ({"name": "alice"}, "field keys[0] has no token_sha256"),
        ({"token_sha256": digest("x")}, "field keys[0] has no name"),
        (entry("alice") | {"name": ""}, "keys[0].name is ''"),
        (entry("alice") | {"name": 7}, "keys[0].name is 7"),
        (entry("alice") | {"name": ["a"] * 9_000}, "keys[0].name is ['a'"),
        (entry("../alice"), "field keys[0]: a name is 1 to 64"),
        (entry("a" * 65), "a name is 1 to 64"),
        (entry("alice\0"), "a name is 1 to 64"),
        (entry("alice") | {"token_sha256": 7}, "token_sha256: it must be the SHA-256"),
        (entry("alice") | {"token_sha256": "ab"}, "64 hexadecimal digits"),
        (entry("alice") | {"token_sha256": "the-token-itself"}, "16 characters"),
        (entry("alice") | {"token_sha256": digest("x").upper()}, "64 hexadecimal digits"),
        (entry("alice") | {"x\ny\x1b[2J": 1}, r"an unknown field 'x\ny\x1b[2J'"),
        (entry("alice") | {"\ud800": 1}, "is not JSON"),
        (entry("alice") | {"token": "x"}, "unknown field 'token'"),
        *(
            (entry("alice", sessions=wrong), f"keys[0].sessions is {str(wrong)[:9]}")
            for wrong in (0, -1, 1.5, True, 10**400, float("nan"))
        ),
        (entry("alice", tree_nodes=[[]] * 9_000), "keys[0].tree_nodes is [[]"),
        (entry("alice", sessions="4"), "keys[0].sessions is '4'"),
    ],
)
def test_a_file_of_no_use_is_refused_by_its_entry(content: Any, said: str, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    whole = isinstance(content, str) and content != "alice"
    document = content if whole else json.dumps({"keys": [content]})
    path.write_text(document, encoding="latin-1")
    line = assert_refused(lambda: Keys.read(path), [said])
    assert "the-token" not in line
    assert line.startswith(f"{path} ")
    assert line.isprintable()
    assert len(line) < 300 + len(str(path))


def test_two_keys_share_neither_name_nor_token(tmp_path: Path) -> None:
    for second, shown in ((entry("alice", "two"), []), (entry("bob", "one"), ["'bob'"])):
        file = write(tmp_path / "keys", entry("alice", "one"), second)
        assert_refused(partial(Keys.read, file), ["'alice'", *shown])


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
def test_a_file_that_others_may_write_is_refused_and_one_that_they_may_read_is_not(
    file: Path,
) -> None:
    for mode in (0o644, 0o640, 0o444):  # as container platforms mount secrets
        file.chmod(mode)
        assert Keys.read(file).required
    for mode in (0o646, 0o664, 0o620, 0o602):
        file.chmod(mode)
        for wanted in (lambda: Keys.read(file), lambda: make_key(file, "carol")):
            assert_refused(wanted, [f"{mode:04o}", f": chmod go-w {file}"])


def test_a_changed_file_takes_effect_with_the_next_call(file: Path) -> None:
    keys = Keys.read(file)
    write(file, entry("bob", sessions=1), entry("carol"))
    assert identify(keys, bearer("token of alice")) is None
    assert identify(keys, bearer("token of bob")) == Key("bob", sessions=1)
    assert identify(keys, bearer("token of carol")) == Key("carol")
    write(file)
    assert identify(keys, bearer("token of bob")) is None
    assert keys.required


@pytest.mark.parametrize("damage", ["broken", "gone", "writable"])
def test_a_broken_new_file_keeps_the_old_keys_and_the_log_says_why_once(
    damage: str, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = Keys.read(file)
    if damage == "broken":
        file.write_text('{"keys": [{"name": "mallory"}]}')
    elif damage == "gone":
        file.unlink()
    else:
        write(file, entry("mallory")).chmod(0o666)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            assert identify(keys, bearer("token of alice")) is not None
            assert identify(keys, bearer("token of mallory")) is None
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert str(file) in caplog.text
    write(file, entry("carol"))
    assert identify(keys, bearer("token of carol")) is not None


def test_a_file_that_is_gone_is_told_without_a_call_and_its_keys_stay(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = Keys.read(file)
    file.unlink()

    with suppress(asyncio.TimeoutError):
        asyncio.run(asyncio.wait_for(keys.watch(), 3 * WATCH_SECONDS))
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert f"the keys file {file} is missing; its 2 keys stay valid" in caplog.text
    assert identify(keys, bearer("token of alice")) is not None
    assert_refused(lambda: Keys.read(file), [str(file)])  # a target does not start without it


def test_a_grant_follows_its_key_until_another_has_the_token_or_none(file: Path) -> None:
    keys = Keys.read(file)
    grants = [keys.grant(bearer("token of bob")) for _ in range(3)]
    assert all(grant is not None for grant in grants)
    bob, renamed, taken = (grant for grant in grants if grant is not None)
    write(file, entry("bob", sessions=2))
    keys.reload()
    assert (bob.key, bob.withdrawn) == (Key("bob", sessions=2), False)
    write(file, entry("robert", "token of bob"))
    keys.reload()
    assert (renamed.key.name, renamed.withdrawn) == ("bob", True)
    write(file)
    keys.reload()
    assert taken.withdrawn
    write(file, entry("bob"))
    keys.reload()
    assert taken.withdrawn


def test_a_made_key_lets_in_and_its_token_is_neither_in_the_file_nor_in_memory(
    tmp_path: Path,
) -> None:
    path = tmp_path / "new" / "keys.json"
    tokens = {name: make_key(path, name) for name in ("alice", "bob")}
    keys = Keys.read(path)
    for name, token in tokens.items():
        assert identify(keys, bearer(token)) == Key(name)
        assert len(token) == 43  # 256 bits
        assert token not in path.read_text() + repr(vars(keys))
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["keys.json"]
    write(path, entry("dora", tree_nodes=3)).chmod(0o640)
    make_key(path, "carol")
    assert identify(Keys.read(path), bearer("token of dora")) == Key("dora", tree_nodes=3)
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("alice", "already"),
        ("", "needs a name"),
        ("../x", "a name is 1 to 64"),
        ("a b", "a name is 1 to 64"),
    ],
)
def test_a_key_that_cannot_be_made_leaves_the_file_alone(name: str, said: str, file: Path) -> None:
    before = file.read_bytes()
    assert_refused(lambda: make_key(file, name), [said])
    assert file.read_bytes() == before
    assert [entry.name for entry in file.parent.iterdir()] == ["keys.json"]
    another = file.with_name("keys.json.new")
    another.touch()  # somebody else makes a key
    assert_refused(lambda: make_key(file, "carol"), ["outrider keys"])
    assert another.exists()


def test_the_command_prints_the_token_alone_on_stdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.json"
    assert main(["keys", "--name", "alice", "--keys_file", str(path)]) == 0
    shown = capsys.readouterr()
    assert identify(Keys.read(path), bearer(shown.out.removesuffix("\n"))) == Key("alice")
    assert shown.out.strip() not in shown.err
    assert main(["keys", "--name", "alice", "--keys_file", str(path)]) == 1
    with pytest.raises(SystemExit) as ended:
        main(["keys", "--keys_file", str(path)])
    assert ended.value.code == 2
    assert "--name is needed" in capsys.readouterr().err


def test_keys_are_a_targets_and_never_travel_in_plaintext_either(file: Path) -> None:
    options, everywhere = SecurityOptions(keys_file=file), Address("0.0.0.0", 0)
    open_to_all = SecurityOptions(keys_file=file, insecure=True)
    both = ["--token_file", "--keys_file"]
    assert_refused(lambda: SecurityOptions(token_file=file, keys_file=file), both)
    assert_refused(lambda: channel_security(options, HERE), ["--keys_file"])
    assert_refused(lambda: server_security(options, everywhere), ["0.0.0.0"])
    assert_refused(lambda: server_security(open_to_all, everywhere), ["plaintext"])
    assert identify(server_security(options, HERE).keys, bearer("token of bob")) == Key("bob")


def test_every_line_of_the_security_checklist_names_tests_that_exist() -> None:
    checklist = (
        (ROOT / "docs" / "security.md").read_text().partition("## Checklist")[2].partition("##")[0]
    )
    lines = [line for line in checklist.splitlines() if line.startswith("| ")][1:]
    assert len(lines) > 40
    for line in lines:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", line)
        assert named, line
        for file, test in named:
            assert f"def {test}(" in (ROOT / file).read_text(), line
