"""From a request to its record: what a text took, and what was verified survives whatever ends
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from threading import Event

import pytest

from inference.backends.eager import EagerModel
from inference.cost.billing import Billing
from inference.drafters.round_proposer import BestFirst, RoundProposer
from inference.engine.engine import Engine
from inference.engine.sessions.local_session import LocalSession
from inference.errors import Mismatch, OutriderError, Unavailable
from inference.loop.draft_thread import inline
from inference.order import Pace, Progress
from inference.proposer import Proposer
from inference.sampling import SamplingParams
from inference.text.tokenizer import Tokenizer
from outrider.models.found_model import EMBEDDED
from outrider.money import RunBudget
from outrider.text.completion import Completion, Request, complete, silent
from outrider.text.pieces import Piece
from tests.support.pairs import SEQUENCE_LENGTH, perturbed

TOKENIZER = Tokenizer(EMBEDDED / "target")
PROMPT, TOKENS = [5, 17, 250, 3, 99], 60
PACES = [Pace.GO_ON, Pace.WAIT]


REQUEST = Request(0, "", PROMPT, SamplingParams(), TOKENS, frozenset())


def rounds() -> RoundProposer:
    model = EagerModel(perturbed(1, 0.02), rows=1, capacity=SEQUENCE_LENGTH + 64, max_nodes=128)
    return RoundProposer(model, BestFirst(8, 4), room=63)


def made(
    session: LocalSession,
    proposers: Sequence[Proposer],
    asked: Request = REQUEST,
    show: Callable[[Piece], None] = silent,
    pace: Pace = Pace.GO_ON,
) -> Completion:
    order = asked.order(pace)
    return complete(asked, session, inline(proposers), TOKENIZER, show, Event(), order=order)


def test_the_record_counts_what_session_and_proposer_did(served: Engine) -> None:
    proposer = rounds()
    first = made(LocalSession(served), [proposer], REQUEST, pace=Pace.WAIT)
    second = made(LocalSession(served), [proposer], REQUEST, pace=Pace.WAIT)
    assert first.token_ids == second.token_ids
    assert proposer.usage.calls == first.draft_calls + second.draft_calls
    assert first.draft_calls == second.draft_calls > 0
    for done in (first, second):
        assert sum(done.chunk_tokens) == len(done.token_ids) == TOKENS
        assert done.num_accepted_tokens + done.traffic.forwards == TOKENS
        assert done.accepted_by == {"model": done.num_accepted_tokens}
        assert done.acceptance_length == TOKENS / done.traffic.forwards
        assert done.num_draft_tokens == done.traffic.nodes - done.traffic.forwards
        assert 0 < done.traffic.share_seconds <= done.traffic.model_seconds * (1 + 1e-9)


@pytest.mark.parametrize("pace", PACES, ids=lambda pace: pace.name)
def test_a_stop_id_ends_the_text_and_is_never_shown(served: Engine, pace: Pace) -> None:
    full = made(LocalSession(served), [], REQUEST).token_ids
    for token in list(dict.fromkeys(full))[:12]:
        cut, pieces = full[: full.index(token) + 1], list[Piece]()
        asked = replace(REQUEST, stop_ids=frozenset([token]))
        done = made(LocalSession(served), [rounds()], asked, pieces.append, pace)
        assert (done.token_ids, done.finish_reason) == (cut, "stop")
        shown = TOKENIZER.stream(PROMPT)
        text = "".join(shown.push(one) for one in cut[:-1]) + shown.finish()
        assert done.text == "".join(piece.text for piece in pieces) == text


@pytest.mark.parametrize("pace", PACES, ids=lambda pace: pace.name)
def test_what_comes_behind_a_stop_string_is_no_part_of_the_record(
    served: Engine, pace: Pace
) -> None:
    """Whatever else one forward has committed: the record is that of the target alone."""
    asked = replace(REQUEST, params=SamplingParams(logprobs=1))
    full = made(LocalSession(served), [], asked)
    for place in range(3, TOKENS, 7):
        asked = replace(asked, stop=[TOKENIZER.decode(full.token_ids[place : place + 1]) or "none"])
        alone = made(LocalSession(served), [], asked)
        done = made(LocalSession(served), [rounds()], asked, pace=pace)
        assert (done.token_ids, done.text) == (alone.token_ids, alone.text)
        assert len(done.logprobs) == len(done.token_ids) == sum(done.chunk_tokens)
        assert done.stopped_by == alone.stopped_by


class Ending(LocalSession):
    """A session that does something else after so many tokens, and then receives nothing."""

    def __init__(self, engine: Engine, after: int, act: Callable[[], object] = lambda: None):
        super().__init__(engine)
        self._left, self._act = after, act

    def receive(self, timeout: float) -> Progress | None:
        if self._left <= 0:
            self._act()
            return None
        progress = super().receive(timeout)
        self._left -= len(progress.tokens) if progress is not None else 0
        return progress


@pytest.mark.parametrize("error", [Unavailable("it went away"), Mismatch("it contradicts itself")])
def test_what_was_verified_survives_an_error(served: Engine, error: OutriderError) -> None:
    def fail() -> None:
        raise error

    whole = made(LocalSession(served), [], REQUEST)
    done = made(Ending(served, 20, fail), [rounds()], REQUEST, pace=Pace.WAIT)
    with pytest.raises(type(error), match=str(error)):
        done.raise_failure()
    assert 20 <= len(done.token_ids) < TOKENS
    assert done.token_ids == whole.token_ids[: len(done.token_ids)]
    assert whole.text.startswith(done.text.rstrip("\ufffd"))
    assert (done.finish_reason, done.error) == ("error", str(error))
    assert done.traffic.forwards > 0
    assert "error" in done.record()
    assert "error" not in whole.record()
    assert served.free_rows == served.model.rows, "a row was not given back"


def test_a_target_that_stalls_spends_no_more_than_was_allowed_and_can_be_cancelled(
    served: Engine,
) -> None:
    """A dollar a second: the text ends, with what was made, although nothing comes."""
    with RunBudget(Billing(3600.0), 50.0, clock=count(0.1, 0.1).__next__).charge() as charge:
        done = made(Ending(served, 10), [], replace(REQUEST, charge=charge))
    assert (done.finish_reason, len(done.token_ids)) == ("spent", 10)
    assert done.usd == pytest.approx(50.0, abs=2.0)
    cancelled = Event()
    session = Ending(served, 10, cancelled.set)
    done = complete(REQUEST, session, inline(), TOKENIZER, silent, cancelled)
    assert (done.finish_reason, len(done.token_ids)) == ("cancelled", 10)
