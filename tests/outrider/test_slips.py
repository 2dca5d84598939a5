"""What a mistake on a command line gets: one line, which names what may have been meant."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from compile.__main__ import main as compile_main
from deploy.__main__ import main as deploy_main
from outrider.cli import main
from outrider.compare.__main__ import main as compare_main
from outrider.link.emulated_link import main as link_main

Command = Callable[[Sequence[str]], int]
SLIPS: list[tuple[Command, str, str]] = [
    (main, "--role draft --promt x", "did you mean --prompt?"),
    (main, "darft --prompt x", "did you mean draft?"),
    (main, "--role drafft", "did you mean draft?"),
    (main, "--role draft --pace wiat", "did you mean wait?"),
    (main, "target --prompt hi", "--prompt is for run, fused_client, "),
    (main, "serve --dtyp int8", "did you mean --dtype?"),
    (compile_main, "--targt cpu", "did you mean --target?"),
    (compile_main, "--target trm1", "did you mean trn1?"),
    (compile_main, "--target", "--target: expected one argument"),
    (compile_main, "build", "what is build?"),
    (deploy_main, "price", "did you mean prices?"),
    (deploy_main, "", "COMMAND"),
    (deploy_main, "prices --regoin x", "did you mean --region?"),
    (deploy_main, "prices --pricing spott", "did you mean spot?"),
    (compare_main, "--rttt 3", "did you mean --rtt?"),
    (compare_main, "--temperatur 1", "did you mean --temperature?"),
    (compare_main, "--architectures fuzed", "did you mean fused?"),
    (compare_main, "now", "what is now?"),
    (link_main, "--to 127.0.0.1:1 --delay 3", "did you mean --delay_ms?"),
]


def test_a_flag_of_another_verb_is_not_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--temprature", "1"])
    assert "--temperature" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "words", "meant"), SLIPS, ids=lambda it: getattr(it, "__module__", str(it))
)
def test_a_slip_gets_one_line_that_names_what_was_meant(
    capsys: pytest.CaptureFixture[str], command: Command, words: str, meant: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        command(words.split())
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert ended.value.code == 2
    assert said.out == ""
    assert meant in line
