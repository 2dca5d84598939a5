"""A client where no model can be computed: torch, transformers and llama.cpp are hidden."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from urllib.request import Request, urlopen

import pytest

import outrider
from outrider.endpoint.run import SERVING
from outrider.models.found_model import EMBEDDED
from tests.support.repository import ROOT

HIDDEN = ("torch", "transformers", "safetensors", "llama_cpp")
PROMPT = "for x in range(10):\n    print("


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a Python that finds none of HIDDEN."""
    directory = tmp_path_factory.mktemp("light")
    hide = f"import sys; sys.modules.update(dict.fromkeys({HIDDEN}))"
    (directory / "sitecustomize.py").write_text(hide)
    path = os.pathsep.join([str(directory), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, "AWS_EC2_METADATA_DISABLED": "true"}


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with outrider.serve(port=0, batch=2) as running:
        yield running.address


def own_text(target: str, tokens: int) -> str:
    """The target's greedy text after PROMPT."""
    with outrider.connect(target, draft=False) as engine:
        return engine.generate(PROMPT, max_tokens=tokens, temperature=0).text


def ran(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "outrider", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, cwd="/")


NOTE = "draft: copied text only; a draft model needs pip install '.[torch]'\n"


@pytest.mark.parametrize("draft", [(), ("--draft", "copy,beside"), ("--draft", "copy")])
def test_text_without_a_draft_model_is_the_targets_own(
    draft: tuple[str, ...], target: str, environment: dict[str, str]
) -> None:
    words = ["--target_host", target, "--prompt", PROMPT, "--max_tokens", "48", "--json"]
    words += ["--temperature", "0"]
    made = ran(environment, "run", *words, *draft)
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["text"] == own_text(target, 48)
    assert made.stderr.count(NOTE) == (not draft)


def test_a_chat_copies_text(target: str, environment: dict[str, str]) -> None:
    words = ("chat", "--target_host", target, "--max_new_tokens", "8")
    command = [sys.executable, "-m", "outrider", *words]
    said = subprocess.run(
        command, env=environment, input="x\n/exit\n", capture_output=True, text=True, cwd="/"
    )
    assert said.returncode == 0, said.stderr
    assert said.stderr.count(NOTE) == 1


def test_up_says_what_pairs_need(environment: dict[str, str]) -> None:
    listed = ran(environment, "up").stdout
    assert "needs torch or llama.cpp" in listed
    assert "nothing fits" not in listed


def test_the_python_interface_makes_text(target: str, environment: dict[str, str]) -> None:
    code = (
        "import outrider\n"
        f"with outrider.connect({target!r}) as engine:\n"
        "    made = engine.generate('def main():', max_tokens=8, temperature=0)\n"
        "    print(len(made.token_ids), engine.draft)"
    )
    made = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert made.stdout == "8 copied text\n", made.stderr


@pytest.mark.parametrize("verb", [("serve",), ("up",)])
def test_the_endpoint_serves(
    verb: tuple[str, ...], target: str, environment: dict[str, str]
) -> None:
    words = (*verb, "--target_host", target, "--http_port", "0")
    command = [sys.executable, "-m", "outrider", *words]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = next(line for line in process.stderr if line.startswith(SERVING))
            base = next(word for word in line.split() if word.startswith("http"))
            asked = {"model": "", "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
            request = Request(
                f"{base}/completions",
                json.dumps(asked).encode(),
                {"Content-Type": "application/json"},
            )
            with urlopen(request, timeout=30) as answer:
                assert json.load(answer)["choices"][0]["text"] == own_text(target, 8)
        finally:
            process.terminate()


def test_doctor_finds_the_target_and_says_what_a_draft_needs(
    target: str, environment: dict[str, str]
) -> None:
    done = ran(environment, "doctor", "--target_host", target)
    assert done.returncode == 0, done.stdout
    for words in ("round trip", "--draft model needs torch: pip install '.[torch]'"):
        assert words in done.stdout


def test_models_here_are_listed(environment: dict[str, str]) -> None:
    listed = json.loads(ran(environment, "list", "--json").stdout)
    assert listed["pairs"] == [["outrider-embedded-draft", "outrider-embedded-target"]]
    weights = (EMBEDDED / "draft" / "model.safetensors").stat().st_size
    assert 0 < listed["models"][0]["parameters"] <= weights


REFUSED = [
    ("target", "torch"),
    ("--role verify_draft --prompt x", "torch"),
    ("run --prompt x --draft model,copy", "torch"),
    ("run --prompt x --draft_model DIR", "torch"),
    ("run --prompt x --gamma 3", "torch"),
    ("run --prompt x --preset hybrid", "torch"),
    ("chat --draft substitute", "torch"),
    ("serve --draft_quantization int8", "torch"),
    ("run --prompt x --draft_model x.gguf", "gguf"),
    ("demo", "torch"),
    ("up embedded", "torch"),
    ("compare", "torch"),
    ("compile --target cpu --out x", "torch"),
]
"""A command, and the extra that it needs."""

ONE_AFTER_ANOTHER = """
import contextlib, io, json, sys
from outrider.cli import main
for words in json.load(sys.stdin):
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = main(words.split())
    print(json.dumps([code, said.getvalue()]))
"""


def test_what_needs_an_extra_says_so_in_one_line_before_all_else(
    environment: dict[str, str],
) -> None:
    """Nobody listens where target clients look."""
    with_target = ("run", "chat", "serve")
    commands = [
        f"{words} --target_host 127.0.0.1:1" if words.startswith(with_target) else words
        for words, _ in REFUSED
    ]
    done = subprocess.run(
        [sys.executable, "-c", ONE_AFTER_ANOTHER],
        env=environment,
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        cwd="/",
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(REFUSED), done.stderr
    for (words, extra), (code, said) in zip(REFUSED, answers, strict=True):
        assert code == 1, words
        (line,) = said.splitlines()
        assert line.startswith("error: "), words
        assert f"pip install '.[{extra}]'" in line, words
