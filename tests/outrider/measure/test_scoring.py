"""Scores: numbers, JSON under a schema, and code in its sandbox."""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path

import pytest

from inference.errors import InvalidRequest
from outrider.measure import sandbox
from outrider.measure.scoring import score
from outrider.measure.sets import ANSWER, Item, read_sets

CODE = Item("s", "code", "n", ("?",), tests=f"{ANSWER}\nassert f() == 1\n")
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
RIGHT = "def f():\n    return 1\n"

sandboxed = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


@pytest.mark.parametrize(
    ("answer", "text", "right"),
    [
        ("18", "First 3, then 15: **18**.", True),
        ("18", "It is $18.00", True),
        ("18", "18 or 19", False),
        ("18", "eighteen", False),
        ("1,200", "#### 1200 in 3 days", True),
        ("-5", "x = -5", True),
        (r"\frac{3}{4}", r"so \boxed{\dfrac{3}{4}} of 4", True),
        (r"\frac{3}{4}", r"\boxed{0.75}", True),
        (r"(3, \frac{\pi}{2})", r"\boxed{\left(3,\frac{\pi}{2}\right)}", True),
        ("7", r"7, or \boxed{8}", False),
        ("6", r"\boxed{6 \text{ cm}}", True),
        ("1", r"\boxed{1e999999999}", False),
        ("1", r"\boxed{1/0}", False),
        (r"\text{Ada}", r"\boxed{\text{Bob}}", False),
    ],
)
def test_the_box_counts_and_else_the_last_number(answer: str, text: str, right: bool) -> None:
    assert score(Item("s", "maths", "n", ("?",), answer=answer), text) is right


@pytest.mark.parametrize(
    ("text", "right"),
    [('{"n": 3}', True), ('```json\n{"n":\n3}\n```', True), ('{"n": "3"}', False), ("{", False)],
)
def test_json_is_right_where_it_keeps_to_the_schema(text: str, right: bool) -> None:
    assert score(Item("s", "json", "n", ("?",), schema=json.dumps(SCHEMA)), text) is right


def test_what_has_no_answer_is_not_scored_and_code_only_where_that_is_allowed() -> None:
    assert score(Item("s", "chat", "n", ("?",)), "text") is None
    assert score(CODE, RIGHT) is None


@sandboxed
@pytest.mark.parametrize(
    ("text", "right"),
    [
        (RIGHT, True),
        (f"So:\n```python\n{RIGHT}```\nAs you see, it fails:\n```\n1 / 0\n```", True),
        (f"```python\n{RIGHT}", True),
        ("def f():\n    return 2\n", False),
        ("raise SystemExit(0)", False),
        ("import os\nos._exit(0)", False),
        ("x = bytearray(2**31)\n" + RIGHT, False),
        ("if __name__ == '__main__':\n    1 / 0\n" + RIGHT, True),
    ],
)
def test_code_is_right_where_its_tests_run_to_their_end(text: str, right: bool) -> None:
    assert score(CODE, text, run_code=True) is right


@sandboxed
@pytest.mark.parametrize(
    "deed",
    [
        "open('new', 'w')",
        "open('/tmp/new', 'w')",
        "open({victim!r})",
        "os.remove({victim!r})",
        "os.chmod({victim!r}, 0o777)",
        "os.utime({victim!r})",
        "os.chmod(sys.executable, 0o777)",
        "os.utime(os.__file__)",
        "socket.create_connection(('127.0.0.1', {port}))",
        "socket.socket(socket.AF_UNIX).connect({unix!r})",
        "os.kill({pid}, 0)",
        "os.kill(0, signal.SIGKILL)",
        "os.killpg(0, signal.SIGTERM)",
        "os.kill(os.getppid(), signal.SIGKILL); os.kill(-1, signal.SIGKILL)",
        "os._exit(0)",
        "os._exit(sys._getframe(1).f_locals['status'])",
    ],
)
def test_code_reaches_nothing_of_the_user_and_cannot_report_success(
    tmp_path: Path, deed: str
) -> None:
    victim, unix = tmp_path / "victim", tmp_path / "socket"
    victim.write_text("kept")
    before = victim.stat()
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_server(str(unix), family=socket.AF_UNIX),
    ):
        port = server.getsockname()[1]
        code = deed.format(victim=str(victim), port=port, unix=str(unix), pid=os.getpid())
        program = f"import os, signal, socket, sys\n{code}\n{RIGHT}"
        assert score(CODE, program, run_code=True) is False
    assert victim.read_text() == "kept"
    assert victim.stat()[:2] == before[:2]
    assert victim.stat().st_mtime_ns == before.st_mtime_ns


def test_code_that_stops_its_group_stops_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MAX_WAIT", 2.0)
    code = "import os, signal; os.kill(0, signal.SIGSTOP)"
    for protected in (False, True)[: 1 + bool(shutil.which("bwrap"))]:
        assert score(CODE, code, run_code=True, sandboxed=protected) is None


def test_without_bubblewrap_code_is_refused_unless_the_user_allows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InvalidRequest, match=r"bubblewrap is not installed.*--no_sandbox.*files"):
        sandbox.check_sandbox()
    assert score(CODE, RIGHT, run_code=True, sandboxed=False) is True


@sandboxed
@pytest.mark.slow
def test_a_loop_without_end_is_wrong_by_its_processor_time() -> None:
    assert score(CODE, "while True:\n    pass\n", run_code=True) is False


@sandboxed
def test_no_code_passes_no_tests_of_the_small_set() -> None:
    items = [item for item in read_sets(["small"], None, seed=0) if item.tests is not None]
    assert len(items) == 10
    assert not any(score(item, "pass", run_code=True) for item in items)
