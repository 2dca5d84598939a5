"""`outrider prove` makes each text twice, names what differs, and writes times that can be used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inference.backends.timed import TimeProfile, find_profile
from inference.planner.profile_files import Subject
from inference.sampling import SamplingParams
from inference.times import Shape
from outrider.measure.proof import TEMPERATURES, Proof, TextPair, markdown, verdict
from outrider.measure.prove import main
from outrider.measure.proving import fit_profile
from outrider.text.completion import Completion, Request, new_completion
from tests.support.refusals import assert_usage_error

SUBJECT = Subject("target", "cpu", "m", "float32", 1, 128, 1, 16, "0")
TIMES: Mapping[Shape, float] = {(1, 1): 0.010, (1, 4): 0.012, (1, 16): 0.048}


@pytest.fixture(scope="module")
def proved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a proof of the embedded pair wrote."""
    directory = tmp_path_factory.mktemp("proof")
    (directory / "prompts.txt").write_text("def f(x):\nimport os\n")
    main(["--prompt_text", str(directory / "prompts.txt"), "--max_new_tokens", "12", "--out",
          str(directory), "--usd_per_hour", "1.34", "--threads", "1"])  # fmt: skip
    return directory


def read(directory: Path) -> Any:
    return json.loads((directory / "report.json").read_text())


def test_every_text_of_the_embedded_pair_equals_target_only_at_each_temperature(
    proved: Path,
) -> None:
    found = read(proved)
    assert [one["temperature"] for one in found["equality"]] == list(TEMPERATURES)
    assert all(one["texts"] == one["equal"] == 2 for one in found["equality"])
    for text in found["texts"]:
        assert text["drafted"]["token_ids"] == text["alone"]["token_ids"]
        assert len(text["alone"]["token_ids"]) == 12
        assert text["alone"]["num_draft_tokens"] == 0
    assert any(text["drafted"]["num_draft_tokens"] for text in found["texts"])


def test_the_profile_of_a_proof_is_one_that_a_target_emulates(proved: Path) -> None:
    profile = find_profile(str(proved / "profile.json"))
    measured = {(rows, nodes): seconds for rows, nodes, seconds in read(proved)["times"]}
    assert profile.pass_seconds == measured[min(measured)]
    assert set(profile.nodes) == {nodes for _, nodes in measured}


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--draft", "eagle"], "eagle"),
        (["--max_new_tokens", "0"], "0"),
        (["--draft", "nobody"], "nobody"),
    ],
)
def test_a_wrong_flag_is_refused_in_one_line(
    words: list[str], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_usage_error(capsys, main, words, [shown])


def completed(tokens: list[int], seconds: float) -> Completion:
    record = new_completion(Request(0, "", [1], SamplingParams(), 8, frozenset()))
    return replace(record, token_ids=tokens, seconds=seconds, arrivals=[seconds])


def proof_of(*pairs: TextPair, usd_per_hour: float | None = None) -> Proof:
    profile = fit_profile("m on cpu", SUBJECT, TIMES)
    return Proof("m", "cpu", "d", "hex", {"cpus": 2}, ["noise: all equal"], pairs, SUBJECT, TIMES,
                 profile, usd_per_hour)  # fmt: skip


EQUAL = TextPair(0, 0.7, completed([1, 2, 3], 3.0), completed([1, 2, 3], 1.5))


def test_a_text_that_differs_is_named_and_nothing_is_proved() -> None:
    other = TextPair(4, 1.0, completed([1, 2, 3], 3.0), completed([1, 9, 3], 1.5))
    proof = proof_of(EQUAL, other)
    assert verdict(proof).startswith("NOT proved: 1 of 2 texts equal")
    assert "- prompt 4 at temperature 1 differs at token 1" in markdown(proof)
    assert [text["differs_at"] for text in proof.record()["texts"]] == [None, 1]


def test_a_slow_text_is_reported_and_is_no_failure() -> None:
    slow = TextPair(1, 0.0, completed([1], 3.0), completed([1], 6.0))
    assert verdict(proof_of(slow)).startswith("proved: 1 of 1 texts equal")
    assert "0.50 at least" in verdict(proof_of(slow))


def test_the_report_shows_times_beside_the_profile_and_dollars_where_there_is_a_price() -> None:
    lines = markdown(proof_of(EQUAL, usd_per_hour=3.6))
    assert ["1", "4", "12.00", "12.00"] in [line.split() for line in lines]
    assert "- noise: all equal" in lines
    drafted = next(line for line in lines if line.startswith("with a draft"))
    assert drafted.split()[-1] == "500"  # 3.6 $ an hour at 2 tokens a second


def test_times_of_a_profile_are_found_again() -> None:
    real = TimeProfile("r", "s", "a", 0.030, 0.0, 0.002, 0.0, (1, 4), (1, 4, 16), 1)
    times = {(rows, nodes): real.seconds(rows, nodes, 0) for rows in (1, 4) for nodes in (1, 4, 16)}
    fitted = fit_profile("f", SUBJECT, times)
    for (rows, nodes), seconds in times.items():
        assert fitted.seconds(rows, nodes, 128) == pytest.approx(seconds)
