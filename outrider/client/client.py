"""A client of a target: the connection, the draft that stays loaded, and the budget of texts.

Commands that generate text with a target use `Client.complete`, which any number of threads may
call. A text begins at once, and gets a row of the draft when it is loaded and one is free.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING, TypeAlias

from grpc_comm.client.connection import Connection
from inference.command import printable, say
from inference.cost.billing import Billing
from inference.errors import InvalidRequest, OutriderError
from inference.extras import install
from inference.loop.decode import TargetSession
from inference.loop.draft_thread import Drafter, inline, on_thread
from inference.loop.throttle import Baseline, Throttle
from inference.order import Pace
from inference.planner.prices import Usage
from inference.proposer import Proposer
from inference.text.tokenizer import Tokenizer
from outrider.client.connecting import connect_target, target_tokenizer
from outrider.client.draft_loader import DraftLoader
from outrider.models.directories import find_tokenizer
from outrider.money.budget import RunBudget
from outrider.money.goal import UNSTEERED, read_billing, read_goal
from outrider.options.roles import ClientRole
from outrider.text.completion import Completion, OnCommit, Request, Show, complete, new_completion
from outrider.text.prompts import TextModel

if TYPE_CHECKING:
    from outrider.client.pools import AnyRows
    from outrider.draft_methods import FoundDraft

Watch: TypeAlias = Callable[[TargetSession], TargetSession]
"""Wraps a session with the target."""


class Client:
    """A target, and the draft on this machine. See open_client().

    draft: the draft model on this machine; None without one
    tokenizer: the target's
    length: maximum tokens of a text, prompt and output together
    text_model: the target, for requests of texts
    budget: counts the usage of all texts, and limits their cost
    goal: of drafting
    billing: prices from the options; without a target price the target's own is used
    shares_device: whether target and draft run on this machine, and slow each other down
    """

    def __init__(
        self,
        options: ClientRole,
        target: Connection,
        tokenizer: Tokenizer,
        draft: FoundDraft | None,
        billing: Billing,
        is_local: bool,
    ) -> None:
        self.target, self.tokenizer = target, tokenizer
        self.shares_device = is_local and not target.description.emulated
        self._options, self._model = options, draft
        # name of the requested draft beside the target; empty without one
        self._colocated = target.description.draft_model if options.beside else ""
        requested, self.length = options.sequence_length, target.description.sequence_length
        self._drafted = self.length  # maximum length that a draft here drafts for
        if draft is not None:
            self._drafted = min(self.length, draft.model.sequence_length(requested))
        if requested is not None:
            self.length = min(self.length, requested)
        there = target.description
        self.text_model = TextModel(there.model, tokenizer, self.length, there.stop_ids)
        billing = billing.described(target.description.usd_per_hour)
        self.budget = RunBudget(billing, options.goal.max_usd)
        self.goal = read_goal(options.goal, billing)
        gc.freeze()  # a garbage collection of all loaded objects takes 0.2 s within a text
        self._baseline = Baseline()
        self._loader = DraftLoader(self._load)

    @property
    def model(self) -> str:
        """The target's name."""
        return self.target.description.model

    @property
    def draft(self) -> str | None:
        """The name of the draft here or beside the target; None without a draft."""
        if self._model is not None:
            return self._model.name
        return self._colocated or ("copied text" if self._options.copies else None)

    @property
    def round_trip(self) -> float | None:
        """Round trip in seconds; None until a draft is loaded, and for synchronous rounds."""
        rows = self._loader.loaded
        return None if rows is None else rows.round_trip

    @property
    def unsteered(self) -> str:
        """Reason why steer() would have no, or hardly any, effect; empty if it has one."""
        rows = self._loader.loaded
        if rows is None:
            return UNSTEERED
        return rows.unsteered or self.goal.pointless

    def steer(self, knob: str) -> None:
        """Weigh cost against speed as --cs does, also in running texts.

        Raises InvalidRequest for an unknown position, without a price of the target, and where
        steering has no effect.
        """
        goal = read_goal(self._options.goal.replace(cs=knob), self.budget.billing)
        rows = self.wait()
        if rows is None:
            raise InvalidRequest(UNSTEERED)
        rows.steer(goal)
        self.goal = goal

    def load(self, rows: int = 1) -> None:
        """Start to load the draft, if any. Idempotent; the first text does it, too.

        Texts start without the draft, and use it once it is loaded. A load error is logged, and
        raised by wait() and check().

        rows: texts that it drafts for at the same time
        """
        self._loader.begin(rows)

    def wait(self) -> AnyRows | None:
        """Wait until the draft is loaded; None without one. Raises the error of loading."""
        return self._loader.wait()

    def check(self) -> None:
        """Raise the error of loading, if it has failed by now."""
        self._loader.check()

    @contextmanager
    def _load(self, rows: int) -> Iterator[AnyRows | None]:
        if not self._options.drafts_here:
            yield None
            return
        if self._model is not None and self._drafted < self.length:
            say(
                f"{self._model.name} drafts the first {self._drafted:,} tokens of a text, of "
                f"{self.length:,} that the target serves: --sequence_length says how many"
            )
        from inference.text.grammar import Grammars
        from outrider.client.drafting import DraftSetup, draft_rows

        there = self.target.description
        grammars = Grammars(self.tokenizer.to_json(), there.vocabulary, sorted(there.stop_ids))
        setup = DraftSetup(self._model, self.target, rows, self._drafted, grammars)
        with ExitStack() as stack:
            try:
                loaded = stack.enter_context(draft_rows(self._options, setup, self.goal))
            except OutriderError as error:
                say(f"note: no draft here: {printable(str(error))}")
                raise
            gc.freeze()
            yield loaded

    def _drafter(self) -> Drafter:
        """The draft's thread; throttled if it shares a device with the target."""
        return on_thread(self._lend, Throttle(self._baseline) if self.shares_device else None)

    def _lend(self, wanted: Callable[[], bool]) -> AbstractContextManager[Sequence[Proposer]]:
        """Lend a row of the draft, once it is loaded; none if loading failed."""
        rows = None
        with suppress(OutriderError):
            rows = self._loader.wait(wanted)
        return nullcontext(()) if rows is None else rows.lent(wanted)

    def complete(
        self,
        request: Request,
        show: Show,
        cancelled: Event,
        on_commit: OnCommit | None = None,
        watch: Watch | None = None,
        *,
        alone: bool = False,
        charged: bool = True,
    ) -> Completion:
        """Generate the text of a request, charged to the budget.

        No text starts once the budget is empty. Other arguments are those of
        outrider.text.completion.complete().

        watch: wraps the session with the target, to observe its messages
        alone: target-only; no draft proposes anything
        charged: false for a text that has no cost, since it is for comparison
        """
        budget = self.budget if charged else RunBudget(Billing())
        if budget.empty:
            cost = budget.cost(Usage(), 0)
            return replace(new_completion(request), finish_reason="spent", usd=0.0, cost=cost)
        options = self._options
        session = self.target.session(request.cache_key)
        here = not alone and options.drafts_here
        pace = Pace.WAIT if options.waits and not alone else Pace.GO_ON
        with budget.charge() as charge:
            done = complete(
                replace(request, charge=charge),
                watch(session) if watch is not None else session,
                self._drafter() if here else inline(),
                self.tokenizer,
                show,
                cancelled,
                order=request.order(pace, colocated=bool(self._colocated) and not alone),
                on_commit=on_commit,
            )
        tokens = len(done.token_ids)
        return replace(
            done,
            cost=budget.cost(charge.usage, tokens),
            energy=budget.energy(done.usage, tokens),
            device=self.target.description.device,
            loading_seconds=self._loader.loading_seconds if here else None,
        )

    def close(self) -> None:
        """Release the draft, and store its learned statistics. No text may be running.

        Waits for a running call of the draft, but not for a draft that is still loading.
        """
        self._loader.close()
        gc.unfreeze()


def find_client_draft(options: ClientRole) -> FoundDraft:
    """Find the draft. Raises InvalidRequest for a device that this machine does not have."""
    from outrider.draft_methods import find_draft

    draft = find_draft(options)
    draft.model.check(options)
    return draft


@contextmanager
def open_client(
    options: ClientRole,
    *,
    is_local: bool | None = None,
    find: Callable[[ClientRole], FoundDraft] = find_client_draft,
    given_up: Event | None = None,
) -> Iterator[Client]:
    """Connect to the target that the options name. The draft is loaded by Client.load().

    is_local: whether the target is on this machine; None: judged by its address
    find: finds the draft
    given_up: ends the search for a target that does not answer, when it is set

    Without a draft model only the tokenizer is read. Raises Mismatch if token ids of both sides
    differ, and InvalidRequest for a device that this machine does not have.
    """
    billing = read_billing(options.goal)  # price errors are reported before the target is called
    requested, options = options, options.computable
    if options is not requested:
        say(f"draft: copied text only; a draft model needs {install('torch')}")
    draft = find(options) if options.method is not None else None
    tokenizer = (
        draft.tokenizer if draft is not None else find_tokenizer(options.draft_name, "draft")
    )
    name = draft.name if draft is not None else "the tokenizer here"
    with connect_target(options.connection, given_up) as target:
        tokenizer = target_tokenizer(target, tokenizer, name)
        draft = draft and draft.for_target(tokenizer)
        local = options.connection.is_local if is_local is None else is_local
        client = Client(options, target, tokenizer, draft, billing, local)
        try:
            yield client
        finally:
            client.close()
