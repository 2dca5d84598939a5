"""Grammars of hostile callers: each is refused in one line, and delays no other caller."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import replace
from threading import Event

import pytest

from grpc_comm.client.connection import Connection, connect
from grpc_comm.client.remote_session import RemoteSession
from grpc_comm.security import SecurityOptions
from grpc_comm.server import sender
from inference.errors import InvalidRequest
from inference.order import Decode
from inference.sampling import Grammar, GrammarKind, SamplingParams
from tests.support import pairs
from tests.support.hostile import keys_file, known_as
from tests.support.wire_fixtures import WAIT, background, eventually, rest

PROMPT, TOKENS = [5, 17, 250, 3], 12
LETTERS = SamplingParams(grammar=Grammar(GrammarKind.REGEX, "([a-f]{1,5} )*"))


def schema(value: object) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))


FIELDS = {f"k{at}": {"$ref": "#/$defs/a"} for at in range(12)}
BRANCHES = {
    "anyOf": [{"type": "object", "properties": FIELDS}] * 150,
    "$defs": {"a": {"type": "string", "format": "uuid"}},
}
GRAMMARS: dict[str, tuple[Grammar, str]] = {
    "masks that take long": (schema(BRANCHES), "grammar"),
    "no text at all": (schema({"type": "string", "minLength": 3, "maxLength": 2}), "grammar"),
    "what is no schema": (Grammar(GrammarKind.JSON_SCHEMA, "[" * 60_000), "schema"),
    "what is no expression": (Grammar(GrammarKind.REGEX, "(" * 60_000), "grammar"),
    "rules that are not there": (Grammar(GrammarKind.EBNF, "start: a b c"), "grammar"),
    "no choice": (Grammar(GrammarKind.CHOICE, "[]"), "choices"),
    "a reference elsewhere": (schema({"$ref": "http://127.0.0.1:1/x"}), "grammar"),
}
HOSTILE: dict[str, tuple[SamplingParams, str]] = {
    **{name: (SamplingParams(grammar=grammar), word) for name, (grammar, word) in GRAMMARS.items()},
    "a bias of no token": (SamplingParams(logit_bias=((pairs.VOCABULARY, 1.0),)), "is outside"),
    "a bias of the last number": (SamplingParams(logit_bias=((2**32 - 1, 1.0),)), "is outside"),
    "a prompt that is output": (replace(LETTERS, made=4), "4 tokens of a prompt of 4"),
}
"""Rules, and a word of what is said of them."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Connection]]:
    """Connections of callers by their names, to a target that takes grammars."""
    folder = tmp_path_factory.mktemp("keys")
    keys = SecurityOptions(keys_file=keys_file(folder / "keys.json", alice={}, bob={}))
    engine = pairs.engine(pairs.decoder(1), rows=4, rules=pairs.grammars())
    with background(engine, security=keys) as server:
        yield lambda name: connect(str(server.address), security=known_as(name, folder))
        eventually(lambda: engine.sessions == [])
    assert engine.free_rows == 4


def ask(connection: Connection, params: SamplingParams) -> list[int]:
    with closing(connection.session()) as session:
        session.open(PROMPT, params)
        session.decode(Decode(len(PROMPT) + TOKENS))
        return rest(session)


def until_refused(connection: Connection, grammar: Grammar) -> str:
    """How a grammar is refused, however long a busy machine takes to find out."""

    def receive(session: RemoteSession) -> None:
        while not session.is_open:
            session.receive(1.0)

    with closing(connection.session()) as session:
        session.open(PROMPT, SamplingParams(grammar=grammar))
        with pytest.raises(InvalidRequest) as refusal:
            receive(session)
    (line,) = str(refusal.value).splitlines()
    return line


RULED = (
    LETTERS,
    SamplingParams(presence_penalty=1.0),
    SamplingParams(repetition_penalty=1.1, logit_bias=((5, 1.0),)),
    SamplingParams(),
)
"""Rules that need no new grammar, once LETTERS has been checked."""


def test_an_endless_grammar_is_refused_and_texts_of_all_keys_go_on_meanwhile(
    served: Callable[[str], Connection],
) -> None:
    """Those of the same key, too: an endpoint has one key for all its callers."""
    endless = schema({"type": "integer", "multipleOf": 100_000_007})
    with served("alice") as alice, served("bob") as bob, ThreadPoolExecutor(1) as pool:
        expected = [ask(bob, params) for params in RULED]
        refused, rounds = pool.submit(until_refused, alice, endless), 0
        while wait([refused], timeout=0.3).not_done:
            for connection in (alice, bob):
                assert [ask(connection, params) for params in RULED] == expected
            rounds += 1
        assert "2 s or 1024 MiB" in refused.result()
        assert rounds > 1


def test_who_waits_for_a_check_gets_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "HEARTBEAT_SECONDS", 0.02)
    engine, gate = pairs.engine(pairs.decoder(1), rows=1, rules=pairs.grammars()), Event()
    monkeypatch.setattr(engine.rules, "check", lambda params: gate.wait(WAIT))
    with (
        background(engine) as server,
        connect(str(server.address)) as connection,
        closing(connection.session()) as session,
    ):
        session.open(PROMPT, replace(LETTERS, grammar=Grammar(GrammarKind.REGEX, "[a-f]*")))
        session.decode(Decode(len(PROMPT) + TOKENS))
        for _ in range(3):
            assert session.receive(WAIT) is not None
            assert not session.is_open
        gate.set()
        assert len(rest(session)) == TOKENS


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_hostile_grammar_is_refused_in_one_line(
    served: Callable[[str], Connection], hostile: str
) -> None:
    params, word = HOSTILE[hostile]
    with served("alice") as alice:
        with pytest.raises(InvalidRequest, match=word) as refusal:
            ask(alice, params)
        assert "\n" not in str(refusal.value)
        assert len(ask(alice, LETTERS)) == TOKENS
