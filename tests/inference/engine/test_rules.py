"""Sessions with rules on an engine: what is reported of their tokens, what ends them, and that they
change no other session.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch

from inference.backends import Chosen, Segment
from inference.engine.engine import Engine
from inference.engine.sessions.session import Session
from inference.errors import InvalidRequest
from inference.model.decoder import Decoder
from inference.order import MIN_LOGPROB, TokenLogProb
from inference.sampling import Grammar, GrammarKind, SamplingParams
from inference.token_rule import TokenRule
from tests.support.equality import full_logits
from tests.support.exact import asked, chain, exact_engine, finish, opened, text_of
from tests.support.pairs import VOCABULARY, engine, grammars, prompt_of, rule_oracle
from tests.support.refusals import assert_refused

WORDS = Grammar(GrammarKind.REGEX, "([a-f]{1,5} ){3,}(end|fed)")
RULED = SamplingParams(
    0.7, seed=5, grammar=WORDS, presence_penalty=0.5, repetition_penalty=1.2, logprobs=3
).on_the_wire()
GREEDY = replace(RULED, temperature=0.0)
PROMPT = prompt_of(40)
RULES = grammars()


@pytest.fixture
def served(target: Decoder) -> Engine:
    return engine(target, rows=4, rules=RULES)


def told(session: Session, served: Engine) -> Sequence[TokenLogProb]:
    return served.progress(session, session.prompt_length).logprobs


def assert_log_probs(
    found: Sequence[TokenLogProb], rows: torch.Tensor, tokens: Sequence[int], likeliest: int
) -> None:
    """They are those of the tokens under the softmax of these rows [n, V]."""
    assert len(found) == len(tokens)
    rows = rows.double().log_softmax(-1).clamp(min=MIN_LOGPROB)
    for one, row, token in zip(found, rows, tokens, strict=True):
        assert one.value == pytest.approx(float(row[token]), abs=1e-4)
        assert one.values == pytest.approx(row.topk(likeliest).values.tolist(), abs=1e-4)
        assert [row[id_].item() for id_ in one.ids] == pytest.approx(one.values, abs=1e-4)


@pytest.mark.parametrize("params", [RULED, GREEDY], ids=["T0.7", "T0"])
def test_log_probabilities_are_those_of_what_the_target_chooses_by(
    target: Decoder, served: Engine, params: SamplingParams
) -> None:
    """Of adjusted logits at the text's temperature. Candidates are accepted on the way."""
    first = asked(served, PROMPT, 25, params)
    finish(served, first)
    session = asked(served, PROMPT, 25, params)
    stream = served.join(session)
    served.append(session, stream, chain(len(PROMPT) - 1, text_of(first)[:20]))
    finish(served, session)
    assert text_of(session) == text_of(first)
    assert session.spent.forwards < first.spent.forwards
    oracle, scale = rule_oracle(len(PROMPT), params), params.temperature or 1.0
    logits = full_logits(target, session.tokens)
    rows = torch.stack(
        [
            oracle.adjusted(session.tokens[: at + 1], logits[at].double())
            for at in range(len(PROMPT) - 1, session.length - 1)
        ]
    )
    assert_log_probs(told(session, served), rows / scale, text_of(session), 3)
    for cursor in (len(PROMPT), len(PROMPT) + 7, session.length):
        progress = served.progress(session, cursor)
        assert progress.logprobs == told(session, served)[cursor - len(PROMPT) :]
        assert len(progress.logprobs) == len(progress.tokens)


def test_nothing_is_reported_where_it_was_not_asked_for(served: Engine) -> None:
    session = asked(served, PROMPT, 5, replace(RULED, logprobs=None))
    finish(served, session)
    assert told(session, served) == ()
    bare = asked(served, PROMPT, 5, replace(RULED, logprobs=0))
    finish(served, bare)
    assert [one.ids for one in told(bare, served)] == [()] * 5


@pytest.mark.parametrize("made", [0, 6])
@pytest.mark.parametrize("length", [1, 2, 200])
def test_a_prompts_own_tokens_are_reported_when_it_is_opened(
    target: Decoder, served: Engine, length: int, made: int
) -> None:
    """Also where another text has left their keys. Its made tokens are output."""
    params = SamplingParams(0.7, seed=3, logprobs=2, prompt_logprobs=True, made=made).on_the_wire()
    prompt = prompt_of(length + made)
    for _ in range(2):
        opened(served, prompt)
    session, future = served.open(prompt, params)
    served.finish(future)
    said = future.result(0)
    assert said.reused_tokens == 0 or length == 1
    logits = full_logits(target, prompt)[: length - 1] / params.temperature
    assert_log_probs(said.logprobs, logits, prompt[1:length], 2)
    assert told(session, served) == ()


def test_a_session_that_lost_its_row_goes_on_as_if_nothing_had_been(served: Engine) -> None:
    whole = asked(served, PROMPT, 30, RULED)
    finish(served, whole)
    reports = told(whole, served)
    single = engine(served.model.decoder, rows=1, rules=RULES)  # type: ignore[attr-defined]
    session = asked(single, PROMPT, 12, replace(RULED, prompt_logprobs=True))
    finish(single, session)
    prompts = list(session.prompt_scores.logprobs)
    single.detach(session)
    other = asked(single, prompt_of(30), 5)
    finish(single, other)
    assert session.row is None
    single.close(other)
    single.attach(session)
    assert session.order is not None
    single.decode(session, replace(session.order, end=len(PROMPT) + 30))
    finish(single, session)
    assert text_of(session) == text_of(whole)
    assert [one.ids for one in told(session, single)] == [one.ids for one in reports]
    assert session.prompt_scores.logprobs == prompts


class Tired(TokenRule):
    """A rule that fails at the fourth question."""

    asked = 0

    def adjust(self, tree: object, nodes: Sequence[int]) -> None:  # type: ignore[override]
        self.asked += 1
        if self.asked >= 4:
            raise InvalidRequest("tired")
        return super().adjust(tree, nodes)  # type: ignore[arg-type,return-value]


def test_an_error_of_a_rule_ends_its_session_alone(
    served: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No forward is made again for it."""
    alone = asked(served, PROMPT, 20, RULED)
    finish(served, alone)
    served.close(alone)
    params = SamplingParams(presence_penalty=1.0)
    session, future = served.open(PROMPT, params, rule=Tired(PROMPT, params, None))
    served.finish(future)
    neighbour = asked(served, PROMPT, 20, RULED)
    assert neighbour.order is not None
    served.decode(session, neighbour.order)
    rows, choose = list[int](), served.model.choose

    def counted(segments: Sequence[Segment]) -> list[Chosen]:
        rows.append(len(segments))
        return choose(segments)

    monkeypatch.setattr(served.model, "choose", counted)
    finish(served, neighbour)
    assert neighbour.tokens == alone.tokens
    assert isinstance(session.closed, InvalidRequest)
    assert rows == [2] * 4 + [1] * 16
    assert len(text_of(session)) == 3
    with pytest.raises(InvalidRequest, match="tired"):
        served.progress(session, session.length)


REFUSED: list[tuple[Callable[[Engine], object], str]] = [
    (lambda served: served.open(PROMPT, replace(RULED, made=40)), "at least one that is not"),
    (
        lambda served: served.open(PROMPT, SamplingParams(logit_bias=((VOCABULARY, 1.0),))),
        f"id {VOCABULARY}",
    ),
    (
        lambda served: served.open(
            PROMPT, SamplingParams(grammar=Grammar(GrammarKind.JSON_SCHEMA, json.dumps([])))
        ),
        "schema",
    ),
    (lambda served: engine(served.model.decoder).open(PROMPT, RULED), "has no tokenizer"),  # type: ignore[attr-defined]
]


@pytest.mark.parametrize(("ask", "shown"), REFUSED)
def test_a_rule_that_cannot_be_followed_is_refused_in_one_line(
    served: Engine, ask: Callable[[Engine], object], shown: str
) -> None:
    assert_refused(lambda: ask(served), [shown], InvalidRequest)


def test_a_target_whose_graphs_take_no_masks_names_the_remedy() -> None:
    _, model, _ = exact_engine()
    model.masks = False
    refusing = Engine(model, sequence_length=100, max_tree_nodes=4, vocabulary=VOCABULARY)
    for params in (SamplingParams(logprobs=0), SamplingParams(frequency_penalty=1.0)):
        assert_refused(partial(refusing.open, [1], params), ["--masks"], InvalidRequest)
    assert refusing.open([1], SamplingParams(1.0, min_p=0.5))
