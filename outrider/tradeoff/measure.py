"""The measurement: one draft model, one target, a proposer for each position of the knob, all on
the same prompts in turn.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from threading import Event

from grpc_comm.client.connection import Connection
from inference.backends import Model
from inference.cost.accounting import Rates
from inference.cost.energy_readers import find_readers
from inference.cost.objective import SPEED, Terms, Wish
from inference.drafters.model_proposer import ROOM, WIDEST
from inference.text import Tokenizer
from outrider.comparison.gauges import Gauges
from outrider.comparison.rig import PROMPTS
from outrider.completion import Completion, Request, complete
from outrider.drafting import Aims, GrowingPool, load_draft, read_aims
from outrider.generate import connect_target, make_requests, read_prompts, session_length
from outrider.link import Shape, shaped_link
from outrider.models import find_checkpoint
from outrider.options import Options
from outrider.profiles import user_profiles
from outrider.report import silent
from outrider.spawn import StartedTarget, started
from outrider.tradeoff.options import TradeoffOptions
from outrider.tradeoff.points import Ledger, Point, Sample, marked, summarise
from outrider.wishes import Stated, read_prices

OF_TARGET = (
    "model",
    "target_model",
    "draft_model",
    "artifact",
    "dtype",
    "threads",
    "sequence_length",
    "max_tree_nodes",
)
"""Flags of a draft that a target which is started here is given, too."""


@dataclass(frozen=True)
class Tradeoff:
    """The measured curve. points: in the order of --cs.  objective: what the knob weighs speed
    against.  account: how it was charged.
    """

    points: list[Point]
    objective: str
    device: str
    account: str
    remarks: list[str]
    texts: list[dict[str, object]]


def measure_tradeoff(options: TradeoffOptions) -> Tradeoff:
    """Run it. Raises InvalidRequest where the knob weighs what nobody has stated, before
    anything runs if the target is started here.
    """
    if options.target_host is None:
        stated = read_prices(options.draft, 0.0)
        aims_of(options, stated.rates if stated is not None else None)
    with _rig(options) as rig:
        stated = read_prices(options.draft, rig.target.description.usd_per_hour)
        aims = aims_of(options, stated.rates if stated is not None else None)
        gauges = Gauges(find_readers(), rig.started.pid if rig.started else None)
        positions = [_Position(rig, aim) for aim in aims]
        _measure(positions, rig.requests, options.num_runs, gauges)
        return _sum_up(options, rig, positions, stated)


def aims_of(options: TradeoffOptions, rates: Rates | None) -> list[Aims]:
    """What each position of the knob asks for."""
    return [read_aims(replace(options.draft, cs=knob), rates) for knob in options.cs]


@dataclass(frozen=True)
class _Rig:
    """What is running. started: None for a target that the user named."""

    target: Connection
    tokenizer: Tokenizer
    draft: Model
    draft_times: dict[int, float]
    requests: list[Request]
    started: StartedTarget | None


@contextmanager
def _rig(options: TradeoffOptions) -> Iterator[_Rig]:
    """Start what is needed, and stop it."""
    texts = replace(options.draft, batch=1, seed=options.draft.seed or 0)
    given = texts.prompt is not None or texts.prompt_text is not None
    checkpoint, prompts = (
        find_checkpoint(texts, "draft"),
        read_prompts(texts) if given else list(PROMPTS),
    )
    with ExitStack() as stack:
        began = (
            None
            if options.target_host is not None
            else stack.enter_context(started("target", _target_flags(options)))
        )
        address = began.address if began else options.target_host or ""
        if options.rtt:
            address = stack.enter_context(
                shaped_link(address, Shape(delay_ms=options.rtt / 2))
            ).address
        target = stack.enter_context(
            connect_target(replace(texts, target_host=address), checkpoint.tokenizer)
        )
        length = session_length(texts, checkpoint, target)
        requests = make_requests(
            texts, prompts, checkpoint.tokenizer, length, target.description.stop_ids
        )
        draft = load_draft(texts, checkpoint, 1, length, ROOM, WIDEST)
        yield _Rig(
            target,
            checkpoint.tokenizer,
            draft,
            user_profiles().draft(checkpoint, draft, length),
            requests,
            began,
        )


def _target_flags(options: TradeoffOptions) -> list[str]:
    flags = ["--batch", "1", "--device", options.draft.device]
    named = {name: getattr(options.draft, name) for name in OF_TARGET} | {
        "emulate": options.emulate
    }
    for name, value in named.items():
        flags += [] if value is None else [f"--{name}", str(value)]
    return flags


class _Position:
    """One position of the knob, with a memory of its own for what its texts teach."""

    def __init__(self, rig: _Rig, aims: Aims) -> None:
        self.wish, self.samples = aims.wish, list[Sample]()
        self._rig = rig
        self._pool = GrowingPool(rig.draft, rig.draft_times, rig.target, aims, None)

    def make(self, request: Request, gauges: Gauges) -> Sample:
        """Make the text and read what it took."""
        reading = gauges.read(self._complete, request)
        return Sample(reading.done, reading.joules)

    def _complete(self, request: Request) -> Completion:
        rig = self._rig
        with self._pool.proposer() as proposer:
            return complete(
                request, rig.target.session(), [proposer], rig.tokenizer, silent, Event()
            )


def _measure(
    positions: Sequence[_Position], requests: Sequence[Request], runs: int, gauges: Gauges
) -> None:
    """Every position on every prompt, `runs` times, in an order that turns. A first text of each
    position is not counted: what is known of draft, link and target settles in it. Nor is a token
    of each prompt at each of its turns: the target then holds its keys for all.
    """
    for position in positions:
        position.make(requests[0], gauges)
    for run in range(runs):
        for request in requests:
            positions[0].make(replace(request, max_new_tokens=1), gauges)
            turn = (run + request.index) % len(positions)
            for position in [*positions[turn:], *positions[:turn]]:
                position.samples.append(position.make(request, gauges))
        print(f"run {run + 1} of {runs} done", file=sys.stderr)


def _sum_up(
    options: TradeoffOptions, rig: _Rig, positions: Sequence[_Position], stated: Stated | None
) -> Tradeoff:
    draft, first, rates = (
        options.draft,
        positions[0].samples,
        stated.rates if stated is not None else None,
    )
    untold = (
        "the target is emulated: this machine's joules are not its own" if options.emulate else None
    )
    ledger = Ledger(
        rates,
        draft.target_share,
        draft.draft_watts,
        draft.target_watts,
        whole=rig.started is not None,
        untold=untold,
    )
    points = marked(
        [
            summarise(100 * position.wish.weight, position.samples, first, ledger)
            for position in positions
        ]
    )
    texts = [
        {"cs": 100 * position.wish.weight, **sample.done.record()}
        for position in positions
        for sample in position.samples
    ]
    wish = positions[-1].wish
    return Tradeoff(
        points,
        wish.objective,
        rig.target.description.device,
        _account(stated, draft),
        _remarks(options, wish, rates, points),
        texts,
    )


def _account(stated: Stated | None, draft: Options) -> str:
    if stated is None:
        return "no price was given"
    source = (
        f"{stated.source}; {draft.target_share:g} of the hour is charged from request to last token"
    )
    return f"{source}; electricity and traffic only where priced, a lower bound where they are not"


def _remarks(
    options: TradeoffOptions, wish: Wish, rates: Rates | None, points: Sequence[Point]
) -> list[str]:
    """What a reader must know of how this came about."""
    remarks = []
    if options.emulate:
        remarks.append(
            "The target's passes take emulated times; the draft and both programs are this "
            "machine's."
        )
    if options.target_host is None:
        remarks.append(
            "Draft and target share this machine's cores: speeds do not carry over to two machines."
        )
    if options.rtt:
        remarks.append(
            f"A round trip of {options.rtt:g} ms is emulated by a proxy on this machine, beyond "
            "its own."
        )
    tariff = Terms(
        rates or Rates(0.0),
        options.draft.target_share,
        options.draft.draft_watts,
        options.draft.target_watts,
    ).tariff(wish.objective)
    if tariff == SPEED.times(tariff.wall):
        remarks.append(
            f"{wish.objective} is proportional to time here, so that every position of the knob "
            "asks for the same."
        )
    differing = sum(point.texts - point.identical_texts for point in points)
    remarks.append(
        f"Texts that differ from those of the first point: {differing} of "
        f"{sum(point.texts for point in points)}."
    )
    return remarks
