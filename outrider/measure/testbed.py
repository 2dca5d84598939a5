"""Sets up what a comparison runs on: a target (started here unless one is named), emulated links to
it, the draft and the requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from grpc_comm.client.connection import Connection
from grpc_comm.translate import Description
from inference.cost.billing import Billing
from inference.draft_tuning import TUNING
from inference.drafters.draft import Draft
from inference.drafters.round_proposer import Policy
from inference.engine.engine import Engine
from outrider.client.connecting import connect_target, target_tokenizer
from outrider.client.drafting import load_draft
from outrider.draft_methods import FoundDraft, find_draft
from outrider.measure.account import Account
from outrider.measure.architectures import FUSED, Bench
from outrider.measure.compare_options import CompareOptions, PairOptions
from outrider.measure.environment import over_link
from outrider.measure.link import LinkShape
from outrider.measure.sets import PROMPTS
from outrider.models.profiles import user_profiles
from outrider.money.goal import Goal, read_billing, read_goal
from outrider.options.groups import GoalOptions, MeasureOptions
from outrider.options.roles import FusedTargetRole
from outrider.target.colocated_draft import with_draft
from outrider.target.spawn import StartedTarget, started, target_words
from outrider.target.target import load_served
from outrider.terminal.generate import session_length
from outrider.text.completion import Request
from outrider.text.prompts import make_requests, read_prompts


@dataclass(frozen=True)
class Testbed:
    """The running parts of a comparison."""

    options: CompareOptions
    common: PairOptions  # options of the draft here, and where the target is
    found: FoundDraft  # the draft
    target: Description
    requests: list[Request]
    positions: list[Goal]  # positions of the knob --cs
    account: Account
    started: StartedTarget | None  # None: the user named a target
    bench_of: Callable[[Connection], Bench]

    @contextmanager
    def bench(self, round_trip_ms: float) -> Iterator[Bench]:
        """A bench for arms, over a link of this quality."""
        shape = LinkShape(delay_ms=round_trip_ms / 2, mbit=self.options.bandwidth)
        with (
            over_link(self.common.connection, shape) as reached,
            connect_target(reached) as target,
        ):
            yield self.bench_of(target)


@contextmanager
def testbed(options: CompareOptions, profile: str | None) -> Iterator[Testbed]:
    """Start what is needed, and stop it at the end. Raises InvalidRequest before anything is
    loaded, for too few texts and for a cost without a price.

    profile: the device whose times the started target takes
    """
    draft_device = options.draft_device or options.pair.device
    common = options.pair.but(device=draft_device)
    if options.target_host is not None:
        common = common.but(target_host=options.target_host)
    text = common.text
    prompts = PROMPTS if text.prompt is text.prompt_text is None else read_prompts(text)
    options.check_texts(len(prompts))
    billing = read_billing(common.prices)
    positions = read_positions(options, billing) if options.target_host is None else []
    found = find_draft(common)
    with ExitStack() as stack:
        target: StartedTarget | None = None
        if options.target_host is None:
            target = stack.enter_context(_start(options, profile))
            common = common.but(target_host=target.address)
        with connect_target(common.connection) as connection:
            description = connection.description
            found = found.for_target(target_tokenizer(connection, found.tokenizer, found.name))
            length = session_length(common.sequence_length, found, connection)
        if target is None:
            billing = billing.described(description.usd_per_hour)
            positions = read_positions(options, billing)
        requests = make_requests(
            text, prompts, found.tokenizer, length, description.stop_ids, description.model
        )
        settings: list[Policy] = [*options.chains, *options.trees]
        room = max(TUNING.room, *(one.most_ranked for one in settings))
        found = found.settled(common)
        draft = load_draft(common, found, 1, length, room, room).model
        assert draft is not None, "the draft of a comparison is a model"
        profiles = user_profiles(MeasureOptions(measure_first=True))
        times = found.times(profiles, Draft(draft), length)
        account = Account(billing, whole=target is not None, emulated=bool(profile))
        bench_of = partial(
            Bench,
            tokenizer=found.tokenizer,
            draft=draft,
            draft_times=times,
            chains=options.chains,
            trees=options.trees,
            positions=positions,
            local=_local(common, length) if options.with_local else None,
            account=account,
        )
        yield Testbed(
            options, common, found, description, requests, positions, account, target, bench_of
        )


def read_positions(options: CompareOptions, billing: Billing) -> list[Goal]:
    """The goal of each position of the knob. Raises InvalidRequest where one weighs a price that
    nobody has stated.
    """
    prices = options.pair.prices.stated()
    return [read_goal(GoalOptions(cs=knob, **prices), billing) for knob in options.cs]


def _start(options: CompareOptions, profile: str | None) -> AbstractContextManager[StartedTarget]:
    """Start a target, with a draft beside it where fused is compared."""
    pair, fused = options.pair, FUSED in options.chosen
    words = target_words(
        pair,
        batch=1,
        device=options.target_device or pair.device,
        draft_model=pair.draft_model if fused else None,
        emulate=profile,
        measure_first=profile is None,
    )
    return started("fused_target" if fused else "target", words)


def _local(common: PairOptions, length: int) -> Engine:
    """An engine with the target's model in this process, and a draft beside it."""
    shared = ("model", "target_model", "draft_model", "device", "dtype", "threads")
    given = {name: getattr(common, name) for name in shared}
    own = FusedTargetRole(**given, sequence_length=length, batch=1, measure_first=True)
    return load_served(own, partial(with_draft, own)).engine
