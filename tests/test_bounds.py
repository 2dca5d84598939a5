"""What a process remembers of texts, grammars and callers is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from inference.proposer import Nodes
from inference.sampling import Grammar, GrammarKind
from inference.text import grammar, grammar_check
from inference.text.grammar import Grammars
from inference.times import REMEMBERED, Times
from inference.tree.candidates import REMEMBERED_NUMBERS, CandidateTree
from outrider.endpoint.text_runner import MAX_CHECKED, GrammarTurns
from outrider.text import call_reader
from outrider.text.call_reader import CallReader
from outrider.text.tool_calls import TAGGED
from tests.simulate.memory import reachable
from tests.support.pairs import STOP, VOCABULARY, tokenizer

Filled = Callable[[int], object]
"""Makes a container and puts so many things into it."""


def committed_candidates(count: int) -> object:
    tree = CandidateTree([1])
    stream = tree.join()
    for number in range(count):
        tree.append(stream, Nodes(number, number, [0], [2], [0.5]), lambda *_: 0.5)
        tree.commit([2])
    return tree


def checked_grammars(count: int) -> object:
    grammars = Grammars(tokenizer().to_str(), VOCABULARY, [STOP])
    for number in range(count):
        grammars.check(Grammar(GrammarKind.REGEX, f"x{number:05}"))
    return grammars


def grammars_of_callers(count: int) -> object:
    async def fill() -> GrammarTurns:
        turns = GrammarTurns()
        for number in range(count):
            async with turns.turn("alice", Grammar(GrammarKind.REGEX, f"x{number:05}")) as end:
                end()
        return turns

    return asyncio.run(fill())


def measured_shapes(count: int) -> object:
    times = Times()
    for nodes in range(2, count + 2):
        times.observe(1, 1, 0.1)
        times.observe(1, nodes, 0.1)
    return times


def unfinished_call(count: int) -> object:
    """An object for each letter that a reader held back at most of a call that never ends."""
    reader, held, most = CallReader(TAGGED, frozenset(["add"]), several=True), 0, 0
    written = '<tool_call>{"arguments": "' + "x" * count
    for at in range(0, count, 256):
        text = written[at : at + 256]
        held += len(text) - sum(len(part) for part in reader.push(text))
        most = max(held, most)
    return [object() for _ in range(most)]


BOUNDED: dict[str, tuple[Filled, int]] = {
    "former candidates": (committed_candidates, REMEMBERED_NUMBERS),
    "checked grammars": (checked_grammars, grammar.MAX_CHECKED),
    "grammars known at an endpoint": (grammars_of_callers, MAX_CHECKED),
    "letters of a call without an end": (unfinished_call, call_reader.MAX_BUFFERED),
    "shapes": (measured_shapes, REMEMBERED // 2),
}


@pytest.mark.parametrize("what", BOUNDED)
def test_what_is_remembered_has_its_bound(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_check, "check", lambda text: "")
    fill, bound = BOUNDED[what]
    counts = (bound // 2, bound + bound // 4, bound + bound // 2)
    before, full, beyond = (reachable(fill(count)).total() for count in counts)
    assert before < full - bound // 4, "it remembers something"
    assert beyond <= full + 20
