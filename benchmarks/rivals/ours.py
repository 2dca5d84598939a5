"""Arms of Outrider: in this process with the draft beside the target, and with a target in a
process of its own over gRPC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import NamedTuple

from benchmarks.rivals.arm import Arm, Hear, Told
from inference.decode import Loop, TargetSession, decode
from inference.draft_thread import Drafter, inline, on_thread
from inference.draft_tuning import TUNING
from inference.drafters.copied_text import CopySource
from inference.drafters.growing_proposer import GrowingProposer
from inference.engine.local_session import LocalSession
from inference.model.hub import is_gguf
from inference.order import Decode
from inference.planner.acceptance import Knowledge
from inference.planner.acceptance_file import read_acceptance
from inference.planner.prices import Prices
from inference.proposer import Proposer
from inference.sampling import SamplingParams
from inference.times import Times
from outrider.client.connecting import connect_target, target_tokenizer
from outrider.client.drafting import load_draft
from outrider.client.pools import GrowingRows, Pair, Rows
from outrider.draft_methods import find_draft
from outrider.measure.environment import over_link
from outrider.measure.link import LinkShape
from outrider.models.profiles import user_profiles
from outrider.money.goal import Goal
from outrider.options.groups import Precision
from outrider.options.network import ConnectionOptions
from outrider.options.roles import FusedTargetRole, SharedClientRole
from outrider.target.colocated_draft import with_draft
from outrider.target.spawn import flag_words, started
from outrider.target.target import load_served

PLAIN = "outrider"
HYBRID = f"{PLAIN} hybrid"
GGUF = " GGUF"
"""Ends the names of arms on GGUF files."""


ALONE = inline()


class Models(NamedTuple):
    """A pair of models. dtype: of safetensors; GGUF files have their own.  length: tokens that a
    text may have, prompt included.
    """

    target: str
    draft: str
    dtype: Precision | None
    length: int

    @property
    def sources(self) -> str:
        """Sources of drafts, as --draft names them."""
        return "gguf,copy" if is_gguf(self.draft) else "model,copy"

    @property
    def suffix(self) -> str:
        return GGUF if is_gguf(self.target) else ""


class Decoding(NamedTuple):
    """One arm's decoding. stop_ids: that end a text.  beside: the draft is beside the target."""

    session: Callable[[], TargetSession]
    stop_ids: frozenset[int]
    drafter: Drafter = ALONE
    beside: bool = False

    def play(self, prompt: Sequence[int], tokens: int, hear: Hear) -> Told:
        """Decode greedily, and count forwards after the first tokens."""
        made, forwards = 0, None
        order = Decode(len(prompt) + tokens, self.stop_ids, beside=self.beside)
        with closing(self.session()) as session:
            with closing(Loop(prompt, SamplingParams(), session, order, self.drafter)) as loop:
                for step in loop.steps():
                    if step.tokens:
                        hear(step.tokens)
                        made += len(step.tokens)
                        forwards = session.traffic.forwards if forwards is None else forwards
            loop.drafting.settle()
            return Told(made, session.traffic.forwards - (forwards or 0))

    def forget(self) -> None:
        """Make a text of one token after a prompt of one, so that the target's row holds no keys
        of the last prompt.
        """
        with closing(self.session()) as session:
            for _ in decode([0], SamplingParams(), session, Decode(2)):
                pass


@contextmanager
def arms_here(models: Models, threads: int) -> Iterator[list[Arm]]:
    """Target-only, copies alone, and the draft beside the target with copies: in this process."""
    role = FusedTargetRole(
        target_model=models.target,
        draft_model=models.draft,
        draft=models.sources,
        dtype=models.dtype,
        device="cpu",
        threads=threads,
        batch=1,
        sequence_length=models.length,
        measure_first=True,
    )
    served = load_served(role, partial(with_draft, role))
    engine, stop_ids = served.engine, served.description.stop_ids
    times = Times(dict(served.description.times))
    known = Knowledge(Times(), times, read_acceptance())
    copying = GrowingProposer(known, Prices(holds_target=True), CopySource())

    def arm(what: str, proposers: Sequence[Proposer] = (), beside: bool = False) -> Arm:
        session = partial(LocalSession, engine, tenant=what)
        drafter = on_thread(Rows(proposers).lent) if proposers else inline()
        way = Decoding(session, stop_ids, drafter, beside)
        name = f"{PLAIN}{models.suffix} {what}".strip()
        return Arm(name, threads, way.play, way.forget)

    yield [arm(""), arm("copies", [copying]), arm("hybrid", beside=True)]


@contextmanager
def arms_over_grpc(models: Models, rtt_ms: float) -> Iterator[list[Arm]]:
    """A target in a process of its own with one thread, and the draft in this one with another:
    nobody waits for anybody. rtt_ms: round trip of an emulated link between them, 0 for none
    """
    flags = {
        "measure_first": True,
        "target_model": models.target,
        "dtype": models.dtype,
        "device": "cpu",
        "threads": 1,
        "batch": 1,
        "sequence_length": models.length,
    }
    shape = LinkShape(delay_ms=rtt_ms / 2)
    with (
        started("target", flag_words(flags)) as there,
        over_link(ConnectionOptions(target_host=there.address), shape) as reached,
    ):
        options = SharedClientRole(
            connection=reached,
            draft_model=models.draft,
            draft=models.sources,
            dtype=models.dtype,
            device="cpu",
            threads=1,
            batch=1,
            sequence_length=models.length,
            measure_first=True,
        )
        found = find_draft(options)
        with connect_target(options.connection) as connection:
            found = found.for_target(target_tokenizer(connection, found.tokenizer, found.name))
            draft = load_draft(options, found, 1, models.length, TUNING.room, TUNING.widest)
            times = found.times(user_profiles(options), draft, models.length)
            pair = Pair(connection, times, None)
            pool = GrowingRows(draft, pair, Goal(), [CopySource()])
            stop_ids = connection.description.stop_ids
            way = Decoding(connection.session, stop_ids, on_thread(pool.lent))
            plain = PLAIN + models.suffix
            yield [Arm(f"{plain} hybrid gRPC", 1, way.play, way.forget)]
