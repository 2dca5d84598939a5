"""`import outrider`: connect to a target, make texts, serve one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pkgutil import iter_modules

import pytest

import outrider
from grpc_comm.observability.server_events import SessionOpened
from grpc_comm.server.server import BackgroundServer
from grpc_comm.transport import Address, Endpoint
from outrider.options.roles import ChatRole, TargetRole
from outrider.target.target import load_target
from tests.support.refusals import assert_refused
from tests.support.wire_fixtures import WAIT

PROMPT = "def main():"


@pytest.fixture(scope="module")
def target() -> Iterator[outrider.RunningTarget]:
    with outrider.serve(port=0, batch=4, usd_per_hour=3.6) as running:
        yield running


@pytest.fixture(scope="module")
def engine(target: outrider.RunningTarget) -> Iterator[outrider.Engine]:
    with outrider.connect(target.address, batch=2, draft_watts=10.0) as connected:
        yield connected


@pytest.fixture(scope="module")
def alone(target: outrider.RunningTarget) -> Iterator[outrider.Engine]:
    with outrider.connect(target.address, draft=False) as connected:
        yield connected


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_a_text_with_a_draft_is_the_targets_own(
    engine: outrider.Engine, alone: outrider.Engine, temperature: float
) -> None:
    asked = {"max_tokens": 40, "temperature": temperature, "seed": 3}
    drafted = engine.generate(PROMPT, **asked)
    assert drafted.text == alone.generate(PROMPT, **asked).text
    assert len(drafted.token_ids) == 40


def test_several_threads_share_the_draft(engine: outrider.Engine, alone: outrider.Engine) -> None:
    def make(seed: int) -> str:
        return engine.generate(PROMPT, max_tokens=24, temperature=1.0, seed=seed).text

    with ThreadPoolExecutor(6) as pool:
        texts = list(pool.map(make, range(6)))
    own = [alone.generate(PROMPT, max_tokens=24, temperature=1.0, seed=s).text for s in range(6)]
    assert texts == own


def test_a_streams_pieces_add_up_to_its_text(engine: outrider.Engine) -> None:
    with engine.stream(PROMPT, max_tokens=24, temperature=0) as stream:
        pieces = list(stream)
    assert "".join(piece.text for piece in pieces) == stream.result.text
    assert stream.result.text == engine.generate(PROMPT, max_tokens=24, temperature=0).text


def test_a_stream_that_is_left_ends_its_text(engine: outrider.Engine) -> None:
    with engine.stream(PROMPT, max_tokens=900, temperature=0) as stream:
        next(stream)
    for _ in stream:
        pass
    assert stream.result.finish_reason == "cancelled"
    assert len(stream.result.token_ids) < 900


def test_an_unfinished_stream_has_no_result(engine: outrider.Engine) -> None:
    with (
        engine.stream(PROMPT, max_tokens=900, temperature=0) as stream,
        pytest.raises(outrider.InvalidRequest),
    ):
        assert stream.result


def test_a_chat_uses_the_models_template(engine: outrider.Engine) -> None:
    messages = [{"role": "system", "content": "code"}, {"role": "user", "content": PROMPT}]
    assert engine.chat(messages, max_tokens=12, temperature=0).text == (
        engine.generate("# code\n" + PROMPT, max_tokens=12, temperature=0).text
    )


def test_cost_and_energy_say_how_good_they_are(engine: outrider.Engine) -> None:
    made = engine.generate(PROMPT, max_tokens=24, temperature=0)
    assert made.cost.value is not None
    assert made.cost.value >= made.seconds * 3.6 / 3600 * 0.5
    assert made.cost.lower_bound  # nobody has stated the price of electricity
    assert made.energy.value == pytest.approx(10.0 * made.draft_seconds)
    drafted = made.draft_seconds > 0  # the target may be done before the first call
    assert made.energy.quality.name == ("ESTIMATED" if drafted else "MEASURED")


def test_token_ids_are_a_prompt_too(engine: outrider.Engine) -> None:
    ids = engine.generate(PROMPT, max_tokens=4).token_ids
    assert engine.generate(list(ids), max_tokens=4).token_ids


@pytest.mark.parametrize(
    ("prompt", "given"),
    [
        ("", {}),
        ([], {}),
        ([-1], {}),
        ([10**9], {}),
        ("x", {"temperature": -1.0}),
        ("x = 1\n" * 2000, {}),
    ],
)
def test_what_cannot_be_made_is_refused(
    engine: outrider.Engine, prompt: object, given: dict[str, object]
) -> None:
    assert_refused(lambda: engine.generate(prompt, **given), [])  # type: ignore[arg-type]


def test_a_misspelt_option_is_named_with_the_nearest_and_no_target_is_an_unavailable() -> None:
    assert_refused(lambda: outrider.connect("127.0.0.1:1", token_fil="x"), ["token_file"])
    assert_refused(lambda: outrider.connect("127.0.0.1:1"), ["127.0.0.1:1"], outrider.Unavailable)


def test_every_public_name_exists_and_importing_needs_no_torch() -> None:
    for name in outrider.__all__:
        assert getattr(outrider, name) is not None
    code = "import sys, outrider; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_module_takes_the_place_of_a_public_name() -> None:
    modules = {module.name for module in iter_modules(outrider.__path__)}
    assert not modules & set(outrider.__all__)


# --- replicas


@contextmanager
def two_targets() -> Iterator[tuple[str, list[list[object]]]]:
    """The embedded target twice: the addresses, and what each one's listener heard."""
    with ExitStack() as stack:
        heard: list[list[object]] = [[], []]
        servers = [
            stack.enter_context(
                BackgroundServer(
                    replace(load_target(TargetRole(port=0, batch=2)), listener=events.append)
                )
            )
            for events in heard
        ]
        yield ",".join(str(server.address) for server in servers), heard


def test_texts_are_spread_over_replicas_and_those_of_one_key_stay_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("grpc_comm.client.replicas.GATHER_SECONDS", WAIT)
    with two_targets() as (addresses, heard), outrider.connect(addresses, draft=False) as engine:

        def sessions() -> list[int]:
            return [sum(isinstance(event, SessionOpened) for event in events) for events in heard]

        def generate(key: str) -> str:
            made = engine.generate(PROMPT, max_tokens=8, temperature=0, prompt_cache_key=key)
            return made.text

        texts = {generate("a") for _ in range(4)}
        assert sorted(sessions()) == [0, 4]
        for number in range(12):
            texts.add(generate(str(number)))
        assert min(sessions()) > 0
        assert len(texts) == 1


@pytest.mark.parametrize(
    ("given", "endpoints"),
    [
        ("a", [Endpoint(Address("a", 7))]),
        ("a:1,b", [Endpoint(Address("a", 1)), Endpoint(Address("b", 7))]),
        ("dns:///a", [Endpoint(Address("a", 7), resolved=True)]),
        ("dns:///a:1", [Endpoint(Address("a", 1), resolved=True)]),
    ],
)
def test_a_target_host_may_name_replicas(given: str, endpoints: list[Endpoint]) -> None:
    assert ChatRole(target_host=given, port=7).connection.endpoints == endpoints
