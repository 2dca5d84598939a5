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
from tests.support.commands import Ended
from tests.support.repository import ROOT

HIDDEN = ("torch", "transformers", "safetensors", "llama_cpp")
PROMPT = "for x in range(10):\n    print("
ONE_AFTER_ANOTHER = """
import contextlib, io, json, sys
from outrider.cli import main
commands, sys.stdin = json.load(sys.stdin), io.StringIO("x\\n/exit\\n")
for words in commands:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as ended:
            code = ended.code or 0
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


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


def run(environment: dict[str, str], commands: list[list[str]]) -> list[Ended]:
    """Run commands one after another in one process."""
    done = subprocess.run(
        [sys.executable, "-c", ONE_AFTER_ANOTHER],
        env=environment,
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        cwd="/",
    )
    ended = [Ended(*json.loads(line)) for line in done.stdout.splitlines()]
    assert len(ended) == len(commands), done.stderr
    return ended


NOTE = "draft: copied text only; a draft model needs pip install '.[torch]'\n"


def test_commands_that_need_no_draft_model_work(target: str, environment: dict[str, str]) -> None:
    """Texts without a draft model are the target's own."""
    here = ["--target_host", target]
    text = ["run", *here, "--prompt", PROMPT, "--max_tokens", "16", "--json", "--temperature", "0"]
    drafts: list[list[str]] = [[], ["--draft", "copy,beside"], ["--draft", "copy"]]
    health = ["doctor", "--health", "--port", target.rpartition(":")[2]]
    others = ["--help"], ["up"], ["doctor", *here], ["list", "--json"], health
    chat = ["chat", *here, "--max_new_tokens", "8"]
    ended = run(environment, [*([*text, *draft] for draft in drafts), chat, *others])
    for draft, made in zip(drafts, ended[:3], strict=True):
        assert made.records[0]["text"] == own_text(target, 16)
        assert made.err.count(NOTE) == (not draft)
    chatted, shown, pairs, looked, listed, healthy = ended[3:]
    assert (chatted.code, chatted.err.count(NOTE)) == (0, 1), chatted.err
    assert (shown.code, "chat" in shown.out) == (0, True)
    assert "needs torch or llama.cpp" in pairs.out
    assert "nothing fits" not in pairs.out
    assert looked.code == 0, looked.out
    for words in ("round trip", "--draft model needs torch: pip install '.[torch]'"):
        assert words in looked.out
    found = json.loads(listed.out)
    assert found["pairs"] == [["outrider-embedded-draft", "outrider-embedded-target"]]
    weights = (EMBEDDED / "draft" / "model.safetensors").stat().st_size
    assert 0 < found["models"][0]["parameters"] <= weights
    assert healthy.code == 0, healthy.out
    code = f"import outrider; print(outrider.connect({target!r}).draft)"
    python = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert python.stdout == "copied text\n", python.stderr


@pytest.mark.parametrize("verb", ["serve", "up"])
def test_the_endpoint_serves(verb: str, target: str, environment: dict[str, str]) -> None:
    words = (verb, "--target_host", target, "--http_port", "0")
    command = [sys.executable, "-m", "outrider", *words]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = next(line for line in process.stderr if line.startswith(SERVING))
            base = next(word for word in line.split() if word.startswith("http"))
            body = {"model": "", "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
            headers = {"Content-Type": "application/json"}
            request = Request(f"{base}/completions", json.dumps(body).encode(), headers)
            with urlopen(request, timeout=30) as answer:
                assert json.load(answer)["choices"][0]["text"] == own_text(target, 8)
        finally:
            process.terminate()


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


def test_what_needs_an_extra_says_so_in_one_line_before_all_else(
    environment: dict[str, str],
) -> None:
    """Nobody listens where target clients look."""
    nowhere = ["--target_host", "127.0.0.1:1"]
    commands = [
        [*words.split(), *(nowhere if words.startswith(("run", "chat", "serve")) else [])]
        for words, _ in REFUSED
    ]
    for (_, extra), ended in zip(REFUSED, run(environment, commands), strict=True):
        assert len(ended.err.splitlines()) == 1
        ended.assert_failed(f"pip install '.[{extra}]'")
