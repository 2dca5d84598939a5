"""`import outrider`: connect to a target, make texts, serve one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pkgutil import iter_modules
from typing import Any

import pytest

import outrider
from grpc_comm.server.server import BackgroundServer, Target
from grpc_comm.transport import Address, Endpoint
from outrider.cli import main
from outrider.options.roles import ChatRole, TargetRole
from outrider.target.target import load_target
from tests.support.hand_streams import counted
from tests.support.keywords import module
from tests.support.refusals import assert_refused
from tests.support.repository import ROOT
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
    asked: Any = {"max_tokens": 16, "temperature": temperature, "seed": 3}
    drafted = engine.generate(PROMPT, **asked)
    assert drafted.text == alone.generate(PROMPT, **asked).text
    assert len(drafted.token_ids) == 16


def test_several_threads_share_the_draft(engine: outrider.Engine, alone: outrider.Engine) -> None:
    def make(seed: int) -> str:
        return engine.generate(PROMPT, max_tokens=8, temperature=1.0, seed=seed).text

    with ThreadPoolExecutor(6) as pool:
        texts = list(pool.map(make, range(6)))
    own = [alone.generate(PROMPT, max_tokens=8, temperature=1.0, seed=s).text for s in range(6)]
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


def test_a_list_of_prompts_gives_a_list_of_texts_each_with_its_own_seed(
    engine: outrider.Engine,
) -> None:
    prompts = ["def a():", "class B:", "x = 1"]
    made = engine.generate(prompts, max_tokens=12, temperature=1.0, seed=5)
    alone = [
        engine.generate(prompt, max_tokens=12, temperature=1.0, seed=5 + index)
        for index, prompt in enumerate(prompts)
    ]
    assert [one.text for one in made] == [one.text for one in alone]
    assert [(one.index, one.prompt, one.seed) for one in made] == [
        (index, prompt, 5 + index) for index, prompt in enumerate(prompts)
    ]


def test_what_is_shown_in_a_notebook_is_short(
    engine: outrider.Engine, target: outrider.RunningTarget
) -> None:
    made = engine.generate(PROMPT, max_tokens=60, temperature=0)
    assert len(made.text) > 100
    assert all(len(repr(shown)) < 120 for shown in (made, engine, target))
    assert "…" in repr(made)
    assert repr(made).endswith(", 60 tokens, 'length')")
    assert repr(engine) == f"Engine(model={engine.model!r}, draft={engine.draft!r})"
    with engine.stream(PROMPT, max_tokens=4) as stream:
        assert repr(stream) == "CompletionStream(running)"


@pytest.mark.parametrize(
    ("prompt", "given", "shown"),
    [
        (None, {}, ["text, the messages of a chat, or token ids", "None"]),
        (7, {}, ["7"]),
        ([7, "a"], {}, ["a prompt is text"]),
        (["a", 1], {}, ["a prompt is text"]),
        ("a", {"max_token": 5}, ["max_token", "did you mean max_tokens?"]),
    ],
)
def test_a_mistake_in_a_call_is_named(
    engine: outrider.Engine, prompt: Any, given: dict[str, Any], shown: list[str]
) -> None:
    assert_refused(lambda: engine.generate(prompt, **given), shown)


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
    engine: outrider.Engine, prompt: Any, given: dict[str, Any]
) -> None:
    assert_refused(lambda: engine.generate(prompt, **given), [])


def test_a_misspelt_option_is_named_with_the_nearest_and_no_target_is_an_unavailable() -> None:
    misspelt: Any = {"token_fil": "x"}
    assert_refused(lambda: outrider.connect("127.0.0.1:1", **misspelt), ["token_file"])
    assert_refused(lambda: outrider.connect("127.0.0.1:1"), ["127.0.0.1:1"], outrider.Unavailable)


@pytest.mark.parametrize("given", [{"metrics_port": 0}, {"prot": 0}])
def test_an_option_that_a_target_in_this_process_does_not_have_is_refused(
    given: dict[str, Any],
) -> None:
    assert_refused(
        lambda: outrider.serve(**given), [f"serve() has no parameter {next(iter(given))}"]
    )


def test_keyword_arguments_are_those_of_flags_and_parameters() -> None:
    assert (ROOT / "outrider" / "keywords.py").read_text(encoding="utf-8") == module()


def test_messages_go_to_the_log_and_not_to_the_programs_stderr(
    target: outrider.RunningTarget,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with (
        caplog.at_level("INFO", logger="outrider"),
        outrider.connect(target.address) as engine,
    ):
        engine.generate(PROMPT, max_tokens=4)
    assert capfd.readouterr() == ("", "")
    assert "loaded in" in caplog.text


def test_a_command_in_a_program_that_serves_prints_all_the_same(
    target: outrider.RunningTarget, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", PROMPT, "--target_host", target.address, "--max_new_tokens", "4"]) == 0
    assert "generated 4" in capfd.readouterr().err


def test_the_module_shows_its_public_names_alone() -> None:
    assert dir(outrider) == sorted(outrider.__all__)


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
def two_targets() -> Iterator[list[Target]]:
    """The embedded target twice, each at its address."""
    with ExitStack() as stack:
        targets = [load_target(TargetRole(port=0, batch=2)) for _ in range(2)]
        servers = [stack.enter_context(BackgroundServer(target)) for target in targets]
        yield [
            replace(target, address=server.address)
            for target, server in zip(targets, servers, strict=True)
        ]


def test_texts_are_spread_over_replicas_and_those_of_one_key_stay_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("grpc_comm.client.replicas.GATHER_SECONDS", WAIT)
    with (
        two_targets() as targets,
        outrider.connect(
            ",".join(str(target.address) for target in targets), draft=False
        ) as engine,
    ):

        def sessions() -> list[float]:
            name = "vllm:request_queue_time_seconds_count"
            return [
                counted(target.metrics, name, model_name=target.description.model)
                for target in targets
            ]

        def generate(key: str) -> str:
            made = engine.generate(PROMPT, max_tokens=2, temperature=0, prompt_cache_key=key)
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
    assert ChatRole(target_host=given, port=7).endpoints == endpoints
