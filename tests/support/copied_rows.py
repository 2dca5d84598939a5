"""Two sessions, of which one begins with a copy of the other's row."""

from __future__ import annotations

import numpy as np

from inference.engine.engine import Engine
from inference.engine.session import Session
from inference.order import Decode, End, Pace
from inference.proposer import BASE, Nodes, Proposal
from inference.sampling import SamplingParams
from tests.support.neuron_artifacts import VOCABULARY

PROMPT = (
    np.random.default_rng(4).integers(0, VOCABULARY, 34).tolist()
)  # no near-ties: with 3 int8's text changes with the order of slots
OWN = [5, 7]
"""Tokens with which the second prompt goes on alone."""


def generate(engine: Engine, session: Session, tokens: int) -> list[int]:
    """The next tokens, made alone."""
    before = session.length
    engine.decode(session, Decode(before + tokens))
    while session.end is End.NOT:
        assert engine.step()
    return session.tokens[before:]


def prefilled(
    engine: Engine, tenant: str, prompt: list[int], params: SamplingParams, tokens: int
) -> list[int]:
    """What a session makes that shares nothing with any other."""
    session, opened = engine.open(prompt, params, tenant=tenant)
    engine.finish(opened)
    assert opened.result().reused == 0
    text = generate(engine, session, tokens)
    engine.close(session)
    engine.step()
    return text


def guess(engine: Engine, session: Session, text: list[int]) -> None:
    """Ask for a forward with the next two tokens of this text behind a wrong one."""
    at = session.length - session.prompt_length
    right, wrong = text[at : at + 2], (text[at] + 1) % VOCABULARY
    nodes = [Proposal(0, BASE, wrong, 0.9), Proposal(1, BASE, right[0], 0.8)]
    nodes += [Proposal(2, 1, token, 0.9) for token in right[1:]]
    base = session.length - 1
    engine.append(session, engine.join(session), Nodes(base, nodes))
    engine.go(session, base)


def shares(engine: Engine, params: SamplingParams) -> int:
    """Two sessions, the second with the first one's beginning; tokens that it reused."""
    first_text = prefilled(engine, "alone", PROMPT, params, 16)
    prompt = [*PROMPT, *first_text[:8], *OWN]
    second_text = prefilled(engine, "alone too", prompt, params, 10)
    first, opened = engine.open(PROMPT, params)
    engine.finish(opened)
    engine.decode(first, Decode(len(PROMPT) + len(first_text), pace=Pace.WAIT))
    while first.length < len(PROMPT) + 9:
        guess(engine, first, first_text)
        while engine.step():
            pass
    assert first.spent.nodes > first.spent.forwards  # all were in one forward
    guess(engine, first, first_text)
    second, opened = engine.open(prompt, params)
    engine.finish(opened)
    while engine.step():
        pass
    assert first.tokens == [*PROMPT, *first_text[: first.length - len(PROMPT)]]
    assert generate(engine, second, 5) == second_text[:5]
    generate(engine, first, len(PROMPT) + len(first_text) - first.length)
    assert first.tokens == [*PROMPT, *first_text]
    assert generate(engine, second, 5) == second_text[5:]
    engine.close(first)
    engine.close(second)
    engine.step()
    return opened.result().reused
