"""The comparison with other engines: its arms on the embedded pair, what is measured of a text, and
its file. No test needs llama.cpp's server.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import torch

from benchmarks.rivals.arm import Arm, Hear, Made, Stopwatch, Told, differs_at
from benchmarks.rivals.choice import chosen, groups_of
from benchmarks.rivals.library import HELPS, library_arms
from benchmarks.rivals.library import PLAIN as LIBRARY
from benchmarks.rivals.llama_server import LlamaServer, llama_server, llama_version, read_events
from benchmarks.rivals.ours import Decoding, Models, arms_here, arms_over_grpc
from benchmarks.rivals.play import Answers, Archive, Question, play
from benchmarks.rivals.report import (
    MEASURES,
    Group,
    differing,
    markdown,
    record,
    speeds,
    tokens_a_pass,
)
from inference.engine.local_session import LocalSession
from inference.errors import InvalidRequest, Unavailable
from inference.sampling import SamplingParams
from inference.text import Tokenizer
from outrider.models.loading import EMBEDDED
from tests.support import pairs

TARGET, DRAFT = EMBEDDED / "target", EMBEDDED / "draft"
TOKENS = 16
PAIR = Models(str(TARGET), str(DRAFT), "float32", 256)
TEXT = "for name in names:\n    print(name)\nfor name in"
AFTER, WHOLE = MEASURES.values()


@pytest.fixture(scope="module")
def question() -> Question:
    return Question("python", "names", tuple(Tokenizer(TARGET).encode(TEXT)))


@pytest.fixture(scope="module")
def library() -> Iterator[list[Arm]]:
    with library_arms(TARGET, DRAFT, torch.float32, 1) as arms:
        yield arms


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path / "rivals.jsonl", {"tokens": TOKENS})


def test_every_arm_of_transformers_makes_the_plain_text(
    library: list[Arm], question: Question, archive: Archive
) -> None:
    (answers,) = play(library, [question], TOKENS, archive)
    assert answers.made.keys() == HELPS.keys()
    plain = answers.made[LIBRARY]
    assert (plain.tokens, plain.first, plain.passes) == (TOKENS, 1, TOKENS - 1)
    for made in answers.made.values():
        assert made.ids == plain.ids
        assert 0 < made.first_seconds <= made.seconds
    helped = [made.passes for name, made in answers.made.items() if name != LIBRARY]
    assert max(helped) < plain.passes


def test_our_arms_make_the_text_of_transformers(
    library: list[Arm], question: Question, archive: Archive
) -> None:
    with arms_here(PAIR, 1) as ours:
        (answers,) = play([library[0], *ours], [question], TOKENS, archive)
    assert {tuple(made.ids) for made in answers.made.values()} == {tuple(answers.made[LIBRARY].ids)}
    assert answers.made["outrider"].passes == TOKENS - 1
    assert answers.made["outrider copies"].passes < TOKENS - 1


def test_no_arm_of_ours_begins_with_keys_of_the_text_before() -> None:
    engine, prompt = pairs.engine(pairs.decoder(1), rows=1), list(range(3, 40))
    way = Decoding(partial(LocalSession, engine), frozenset())
    way.play(prompt, 4, lambda ids: None)
    way.forget()
    session, opening = engine.open(prompt, SamplingParams())
    engine.finish(opening)
    assert opening.result().reused == 0
    engine.close(session)


@pytest.mark.extended
def test_a_target_of_its_own_makes_the_same_text(
    library: list[Arm], question: Question, archive: Archive
) -> None:
    with arms_over_grpc(PAIR) as across:
        (answers,) = play([library[0], *across], [question], TOKENS, archive)
    assert answers.made["outrider hybrid gRPC"].ids == answers.made[LIBRARY].ids


def counting(name: str, played: list[str]) -> Arm:
    """An arm that makes 5, 6, 7 at once after the first token, and notes its name."""

    def make(prompt: Sequence[int], tokens: int, hear: Hear) -> Told:
        played.append(name)
        hear([5])
        hear([6, 7])
        return Told(3, 1)

    return Arm(name, 1, make)


def test_a_second_run_goes_on_behind_what_is_on_file(tmp_path: Path) -> None:
    file, settings, played = tmp_path / "out" / "rivals.jsonl", {"tokens": 3}, list[str]()
    arms = [counting(name, played) for name in ("a", "b")]
    questions = [Question("code", str(number), (1, 2)) for number in range(3)]
    assert len(list(play(arms, questions[:1], 3, Archive(file, settings)))) == 1
    played.clear()
    again = Archive(file, settings)
    assert [one.name for one in play(arms, questions, 3, again)] == ["1", "2"]
    assert len(played) == 2 + 2 * 2  # the warm-up comes first
    assert Archive(file, settings).answers == again.answers
    played.clear()
    assert list(play(arms, questions, 3, again)) == []
    assert played == []


def test_a_file_of_other_settings_is_refused(tmp_path: Path) -> None:
    Archive(tmp_path / "rivals.jsonl", {"tokens": 3, "threads": 2})
    with pytest.raises(InvalidRequest, match="begun with tokens 3, this run has 4"):
        Archive(tmp_path / "rivals.jsonl", {"tokens": 4, "threads": 2})


def test_the_order_of_the_arms_changes_from_prompt_to_prompt(archive: Archive) -> None:
    arms = [counting(name, []) for name in "abcd"]
    questions = [Question("code", str(number), (1,)) for number in range(8)]
    orders = {tuple(one.order) for one in play(arms, questions, 3, archive)}
    assert len(orders) > 1
    assert all(sorted(order) == list("abcd") for order in orders)


def test_a_text_counts_from_its_first_tokens_and_from_the_request() -> None:
    moments = iter([10.0, 12.0, 13.0, 16.0])
    watch = Stopwatch(lambda: next(moments))
    for ids in ([5, 6], [7], [8, 9]):
        watch.hear(ids)
    made = watch.made(Told(5, 2))
    assert made == Made([5, 6, 7, 8, 9], 5, 2, 2.0, 6.0, 2)
    assert made.token_seconds == pytest.approx(4 / 3)
    assert made.whole_token_seconds == pytest.approx(6 / 5)


def test_a_text_that_came_at_once_has_no_speed_after_its_first_tokens() -> None:
    assert Made([5], 1, 1, 2.0, 2.0, 0).token_seconds is None


@pytest.mark.parametrize(("ours", "place"), [([1, 2], None), ([1, 3], 1), ([1], 1), ([1, 2, 3], 2)])
def test_a_text_differs_where_a_token_does_or_one_text_ends(
    ours: list[int], place: int | None
) -> None:
    assert differs_at(ours, [1, 2]) == place


def answered(kind: str, name: str, **seconds: float) -> Answers:
    """Texts of four tokens that take so many seconds after a first one that takes one."""
    made = {
        arm: Made([1, 2, 3, 4], 4, 1, 1.0, 1.0 + after, 3 if arm == "plain" else 2)
        for arm, after in seconds.items()
    }
    return Answers(kind, name, 7, list(made), (0.0, 0.0), "unknown", made)


GROUP = Group("Files", "ours", {"plain": "plain", "draft": "plain", "ours": "ours"})
ANSWERED = [
    answered("code", "a", plain=6.0, draft=3.0, ours=1.5),
    answered("chat", "b", plain=6.0, draft=12.0, ours=3.0),
]


def test_speeds_are_by_pairs_of_texts() -> None:
    assert speeds(ANSWERED, "draft", "plain", AFTER) == [2.0, 0.5]
    assert speeds(ANSWERED, "ours", "draft", WHOLE) == [4.0 / 2.5, 13.0 / 4.0]
    assert tokens_a_pass(ANSWERED, "draft") == 1.5


def test_the_table_has_a_row_for_each_kind_and_arm() -> None:
    shown = markdown(ANSWERED, [GROUP])
    assert "| code | draft | 1 | 1000.0 | 1000.0 | 2.00x (2.00 to 2.00) |" in shown
    assert "| all | draft | 2 | 2000.0 |" in shown
    assert "1 of 1" in shown


def test_the_record_says_where_texts_differ() -> None:
    other = ANSWERED[0]
    other.made["draft"] = other.made["draft"]._replace(ids=[1, 2, 9, 4])
    assert list(differing([other], GROUP)) == [("draft", "code a", 2)]
    told = json.loads(json.dumps(record({"tokens": 4}, [other], [GROUP])))
    assert told["differing"] == [[["draft", "code a", 2]]]
    assert {figure["against"] for figure in told["figures"]} == {"plain", "ours"}


def test_a_streamed_text_of_the_server_is_read() -> None:
    heard = list[int]()
    timings = {"predicted_n": 4, "draft_n": 3, "draft_n_accepted": 2}
    events = [{"tokens": [5]}, {"tokens": [6]}, {"tokens": [7]}, {"stop": True, "timings": timings}]
    lines = [b"data: " + json.dumps(event).encode() + b"\n" for event in events]
    assert read_events(iter([b"\n", *lines]), heard.extend) == Told(4, 1)
    assert heard == [5, 6, 7]


@contextmanager
def streaming(events: Sequence[object], heard: threading.Event) -> Iterator[LlamaServer]:
    """A server that streams an event, waits until it was heard, and streams the others."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for event in events:
                line = f"data: {json.dumps(event)}\n\n".encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                assert heard.wait(30)
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, *_: object) -> None:
            """Nothing is logged."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.timeout = 30
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    try:
        yield LlamaServer(server.server_port)
    finally:
        thread.join(30)
        server.server_close()


def test_tokens_of_the_server_are_heard_as_they_come() -> None:
    heard, made = threading.Event(), list[int]()
    events = [{"tokens": [5]}, {"tokens": [6]}, {"stop": True, "timings": {"predicted_n": 2}}]

    def hear(ids: Sequence[int]) -> None:
        made.extend(ids)
        heard.set()

    with streaming(events, heard) as server:
        assert server.play([1, 2], 2, hear) == Told(2, 1)
    assert made == [5, 6]


def test_a_server_that_does_not_start_is_an_error() -> None:
    with (
        pytest.raises(Unavailable, match="did not start: unknown option --host"),
        llama_server(Path(sys.executable), []),
    ):
        pass
    with pytest.raises(Unavailable, match="cannot be run"):
        llama_version(Path("no-such-file"))


@pytest.mark.parametrize(
    ("line", "said"),
    [(b'data: {"tokens": [5]}', "without its figures"), (b'data: {"error": "full"}', "full")],
)
def test_a_streamed_text_that_breaks_off_is_an_error(line: bytes, said: str) -> None:
    with pytest.raises(Unavailable, match=said):
        read_events(iter([line]), lambda ids: None)


def test_arms_are_those_that_there_are_files_for() -> None:
    (group,) = groups_of(safetensors=True, gguf=False)
    assert len(group.plains) == 8
    assert set(group.plains.values()) == {LIBRARY, "outrider"}
    both = groups_of(safetensors=True, gguf=True)
    assert all(group.hybrid in group.plains for group in both)
    (group,) = chosen(both, "llama.cpp,llama.cpp draft")
    assert group.plains == {"llama.cpp": "llama.cpp", "llama.cpp draft": "llama.cpp"}


@pytest.mark.parametrize(
    ("safetensors", "arms", "said"),
    [
        (False, None, "no models"),
        (True, "outrider,vllm", "no arm 'vllm'"),
        (True, "outrider hybrid", "measured against outrider"),
    ],
)
def test_a_choice_that_cannot_be_measured_is_refused(
    safetensors: bool, arms: str | None, said: str
) -> None:
    with pytest.raises(InvalidRequest, match=said):
        chosen(groups_of(safetensors=safetensors, gguf=False), arms)
