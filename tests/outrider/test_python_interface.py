"""`import outrider`: connect to a target, make texts, serve one."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest

import outrider
from grpc_comm.server.server import BackgroundServer
from grpc_comm.transport import Address, Endpoint
from outrider import installation
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


def test_texts_of_several_threads_share_the_draft_and_are_the_targets_own(
    engine: outrider.Engine, target: outrider.RunningTarget
) -> None:
    def texts(engine: outrider.Engine) -> list[tuple[str, int]]:
        def make(seed: int) -> tuple[str, int]:
            text = engine.generate(PROMPT, max_tokens=16, temperature=seed / 5, seed=seed)
            return text.text, len(text.token_ids)

        with ThreadPoolExecutor(6) as pool:
            return list(pool.map(make, range(6)))

    with outrider.connect(target.address, draft=False) as alone:
        own = texts(alone)
    assert texts(engine) == own
    assert {tokens for _, tokens in own} == {16}


def test_a_streams_pieces_add_up_to_its_text_and_one_that_is_left_ends(
    engine: outrider.Engine,
) -> None:
    with engine.stream(PROMPT, max_tokens=24, temperature=0) as stream:
        pieces = list(stream)
    assert "".join(piece.text for piece in pieces) == stream.result.text
    assert stream.result.text == engine.generate(PROMPT, max_tokens=24, temperature=0).text
    with engine.stream(PROMPT, max_tokens=900, temperature=0) as stream:
        next(stream)
        assert repr(stream) == "CompletionStream(running)"
        with pytest.raises(outrider.InvalidRequest):
            assert stream.result
    for _ in stream:
        pass
    assert stream.result.finish_reason == "cancelled"
    assert len(stream.result.token_ids) < 900


def test_a_prompt_may_be_the_messages_of_a_chat_token_ids_or_a_list_of_texts(
    engine: outrider.Engine,
) -> None:
    messages = [{"role": "system", "content": "code"}, {"role": "user", "content": PROMPT}]
    assert engine.chat(messages, max_tokens=12, temperature=0).text == (
        engine.generate("# code\n" + PROMPT, max_tokens=12, temperature=0).text
    )
    ids = engine.generate(PROMPT, max_tokens=4).token_ids
    assert engine.generate(list(ids), max_tokens=4).token_ids
    prompts = ["def a():", "class B:", "x = 1"]
    made = engine.generate(prompts, max_tokens=12, temperature=1.0, seed=5)
    for index, (prompt, text) in enumerate(zip(prompts, made, strict=True)):
        assert (text.index, text.prompt, text.seed) == (index, prompt, 5 + index)
        alone = engine.generate(prompt, max_tokens=12, temperature=1.0, seed=5 + index)
        assert text.text == alone.text


def test_a_text_is_short_in_a_notebook_and_says_how_good_its_cost_and_energy_are(
    engine: outrider.Engine, target: outrider.RunningTarget
) -> None:
    made = engine.generate(PROMPT, max_tokens=60, temperature=0)
    assert made.cost.value is not None
    assert made.cost.value >= made.seconds * 3.6 / 3600 * 0.5
    assert made.cost.lower_bound  # nobody has stated the price of electricity
    assert made.energy.value == pytest.approx(10.0 * made.draft_seconds)
    drafted = made.draft_seconds > 0  # the target may be done before the first call
    assert made.energy.quality.name == ("ESTIMATED" if drafted else "MEASURED")
    assert len(made.text) > 100
    assert all(len(repr(shown)) < 120 for shown in (made, engine, target))
    assert "…" in repr(made)
    assert repr(made).endswith(", 60 tokens, 'length')")
    assert repr(engine) == f"Engine(model={engine.model!r}, draft={engine.draft!r})"


@pytest.mark.parametrize(
    ("prompt", "given", "shown"),
    [
        (None, {}, ["text, the messages of a chat, or token ids", "None"]),
        (7, {}, ["7"]),
        ([7, "a"], {}, ["a prompt is text"]),
        (["a", 1], {}, ["a prompt is text"]),
        ("a", {"max_token": 5}, ["max_token", "did you mean max_tokens?"]),
        ("", {}, ["the prompt is empty"]),
        ([], {}, ["the prompt is empty"]),
        ([-1], {}, ["token ids are 0 to 511", "-1"]),
        ([10**9], {}, ["token ids are 0 to 511", "1000000000"]),
        ("x", {"temperature": -1.0}, ["temperature", "-1.0"]),
        ("x = 1\n" * 2000, {}, ["more than 1024 tokens"]),
    ],
)
def test_a_mistake_in_a_call_is_named(
    engine: outrider.Engine, prompt: Any, given: dict[str, Any], shown: list[str]
) -> None:
    assert_refused(lambda: engine.generate(prompt, **given), shown)


def test_a_misspelt_option_is_named_with_the_nearest_and_no_target_is_an_unavailable() -> None:
    misspelt: Any = {"token_fil": "x"}
    assert_refused(lambda: outrider.connect("127.0.0.1:1", **misspelt), ["token_file"])
    assert_refused(lambda: outrider.connect("127.0.0.1:1"), ["127.0.0.1:1"], outrider.Unavailable)
    options: tuple[Any, ...] = ({"metrics_port": 0}, {"prot": 0})
    for given in options:
        (name,) = given
        assert_refused(partial(outrider.serve, **given), [f"no parameter {name}"])


def test_keyword_arguments_are_those_of_flags_and_parameters() -> None:
    assert (ROOT / "outrider" / "keywords.py").read_text(encoding="utf-8") == module()


def test_messages_go_to_the_log_and_not_to_the_programs_stderr_but_for_a_commands(
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
    assert main(["run", PROMPT, "--target_host", target.address, "--max_new_tokens", "4"]) == 0
    assert "generated 4" in capfd.readouterr().err


def test_the_module_shows_its_public_names_and_no_module_takes_the_place_of_one() -> None:
    assert dir(outrider) == sorted(outrider.__all__)
    assert all(getattr(outrider, name) is not None for name in outrider.__all__)
    modules = {module.name for module in iter_modules(outrider.__path__)}
    assert not modules & set(outrider.__all__)


def test_another_projects_package_of_a_name_of_ours_is_named_before_it_is_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "__init__.py").write_text("raise AssertionError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name, owner in (("numpy", "numpy"), ("strange", "a folder `strange` on the import path")):
        with pytest.raises(ImportError, match=f"{owner} replaces Outrider's package `{name}`"):
            installation.check_top_level("inference", name)
    monkeypatch.setattr(installation, "MARK", b"no such word")
    with pytest.raises(ImportError, match="replaces Outrider's package `inference`"):
        importlib.reload(outrider)


# --- replicas


def test_texts_are_spread_over_replicas_and_those_of_one_key_stay_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("grpc_comm.client.replicas.GATHER_SECONDS", WAIT)
    with ExitStack() as stack:
        targets = [load_target(TargetRole(port=0, batch=2)) for _ in range(2)]
        servers = [stack.enter_context(BackgroundServer(target)) for target in targets]
        addresses = ",".join(str(server.address) for server in servers)
        engine = stack.enter_context(outrider.connect(addresses, draft=False))

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
        texts |= {generate(str(number)) for number in range(12)}
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
