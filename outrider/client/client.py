"""A client of a target: the connection, the loaded draft, and the budget of all requests.

Commands that generate text with a target use `Client.complete`, which any number of threads may
call. A request starts at once, and gets a row of the draft when the draft is loaded and a row free.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from threading import Event
from typing import TypeAlias

from grpc_comm.client.connection import Connection
from inference.command import printable, say
from inference.cost.billing import Billing
from inference.errors import InvalidRequest, OutriderError, install
from inference.loop.decode import TargetSession
from inference.loop.draft_thread import Drafter, inline, on_thread
from inference.loop.throttle import Baseline, Throttle
from inference.order import Pace
from inference.planner.prices import Usage
from inference.proposer import Proposer
from inference.text.grammar import Grammars
from inference.text.tokenizer import Tokenizer
from outrider.client.connecting import connect_target, target_tokenizer
from outrider.client.drafting import AnyRows, DraftLoader, DraftSetup, GrowingRows, draft_rows
from outrider.draft_methods import FoundDraft, find_draft
from outrider.models.loading import find_tokenizer
from outrider.money import UNSTEERED, RunBudget, read_billing, read_goal
from outrider.options.roles import ClientRole
from outrider.text.completion import Completion, OnCommit, Request, Show, complete, new_completion
from outrider.text.prompts import TextModel

Watch: TypeAlias = Callable[[TargetSession], TargetSession]
"""A function that wraps a session with the target, for example to observe it."""


class Client:
    """A connection to a target, with the draft on this machine. See open_client().

    draft: the draft model on this machine; None without a draft
    tokenizer: the target's tokenizer
    length: maximum tokens of a request, prompt and output together
    text_model: the target, as requests refer to it
    budget: counts the usage of all requests, and limits their cost
    goal: the weight of cost against speed in drafting
    billing: prices from the options; without a target price, the price that the target reports
    shares_device: whether target and draft both run on this machine, and slow each other down
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
        # name of the requested draft on the target's device; empty without such a draft
        self._colocated = target.description.draft_model if options.beside else ""
        requested, self.length = options.sequence_length, target.description.sequence_length
        self._drafted = self.length  # maximum length for which the local draft drafts
        if draft is not None:
            self._drafted = min(self.length, draft.model.sequence_length(requested))
        if requested is not None:
            self.length = min(self.length, requested)
        remote = target.description
        self.text_model = TextModel(remote.model, tokenizer, self.length, remote.stop_ids)
        billing = billing.described(target.description.usd_per_hour)
        self.budget = RunBudget(billing, options.max_usd)
        self.goal = read_goal(options, billing)
        gc.freeze()  # collecting garbage among all loaded objects would delay a request by 0.2 s
        self._baseline = Baseline()
        self._loader = DraftLoader(self._load)

    @property
    def model(self) -> str:
        """The target's name."""
        return self.target.description.model

    @property
    def draft(self) -> str | None:
        """The name of the draft, local or on the target's device; None without a draft."""
        if self._model is not None:
            return self._model.name
        return self._colocated or ("copied text" if self._options.copies else None)

    @property
    def round_trip(self) -> float | None:
        """Round trip in seconds; None until the draft is loaded, and in synchronous rounds."""
        rows = self._loader.loaded
        return None if rows is None else rows.round_trip

    @property
    def unsteered(self) -> str:
        """The reason why steer() would have little or no effect; empty if it has an effect."""
        rows = self._loader.loaded
        if rows is None:
            return UNSTEERED
        return rows.unsteered or self.goal.pointless

    def steer(self, knob: str) -> None:
        """Weigh cost against speed as --cs does, also in running requests.

        Raises InvalidRequest if the position is unknown, the target's price is unknown, or steering
        has no effect.
        """
        rows = self.wait()
        if not isinstance(rows, GrowingRows):
            raise InvalidRequest(UNSTEERED)
        self.goal = read_goal(self._options.replace(cs=knob), self.budget.billing)
        rows.steer(self.goal)

    def load(self, rows: int = 1) -> None:
        """Start loading the draft, if any. Idempotent; the first request also does this.

        Requests start without the draft, and use it once it is loaded. A load error is logged, and
        raised by wait() and check().

        rows: maximum number of requests that the draft serves at the same time
        """
        self._loader.begin(rows)

    def wait(self) -> AnyRows | None:
        """Wait for the draft's rows and return them; None without a draft. Raises a load error."""
        return self._loader.wait()

    def check(self) -> None:
        """Raise the load error if loading has already failed."""
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
        remote = self.target.description
        grammars = Grammars(self.tokenizer.to_json(), remote.vocabulary, sorted(remote.stop_ids))
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
        """Return a drafter on its own thread, throttled if draft and target share a device."""
        return on_thread(self._lend, Throttle(self._baseline) if self.shares_device else None)

    def _lend(self, is_wanted: Callable[[], bool]) -> AbstractContextManager[Sequence[Proposer]]:
        """Lend a row of the draft once the draft is loaded; no row if loading failed."""
        rows = None
        with suppress(OutriderError):
            rows = self._loader.wait(is_wanted)
        return nullcontext(()) if rows is None else rows.lent(is_wanted)

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
        """Generate the output of a request, and charge it to the budget.

        No request starts once the budget is empty. The other arguments are as in
        outrider.text.completion.complete().

        watch: wraps the session with the target, to observe its messages
        alone: generate with the target only, without a draft
        charged: False for a comparison run, which costs the user nothing
        """
        budget = self.budget if charged else RunBudget(Billing())
        if budget.empty:
            cost = budget.cost(Usage(), 0)
            return replace(new_completion(request), finish_reason="spent", usd=0.0, cost=cost)
        options = self._options
        session = self.target.session(request.cache_key)
        drafts = not alone and options.drafts_here
        pace = Pace.WAIT if options.waits and not alone else Pace.GO_ON
        with budget.charge() as charge:
            done = complete(
                replace(request, charge=charge),
                watch(session) if watch is not None else session,
                self._drafter() if drafts else inline(),
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
            loading_seconds=self._loader.loading_seconds if drafts else None,
        )

    def close(self) -> None:
        """Release the draft, and store its learned statistics. No request may be running.

        Waits for a running forward pass of the draft, but not for a draft that is still loading.
        """
        self._loader.close()
        gc.unfreeze()


def find_client_draft(options: ClientRole) -> FoundDraft:
    """Find the draft. Raises InvalidRequest for a device that this machine does not have."""
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
    """Connect to the target that the options name. Client.load() loads the draft.

    is_local: whether the target is on this machine; None: decide by its address
    find: returns the draft's files
    given_up: when set, ends the search for a target that does not answer

    Without a draft model, only the tokenizer is read. Raises Mismatch if the token ids of draft and
    target differ, and InvalidRequest for a device that this machine does not have.
    """
    billing = read_billing(options)  # report price errors before connecting to the target
    requested, options = options, options.computable
    if options is not requested:
        say(f"draft: copied text only; a draft model needs {install('torch')}")
    draft = find(options) if options.method is not None else None
    tokenizer = (
        draft.tokenizer if draft is not None else find_tokenizer(options.draft_name, "draft")
    )
    name = draft.name if draft is not None else "the tokenizer here"
    with connect_target(options, given_up) as target:
        tokenizer = target_tokenizer(target, tokenizer, name)
        draft = draft and draft.for_target(tokenizer)
        local = options.is_local if is_local is None else is_local
        client = Client(options, target, tokenizer, draft, billing, local)
        try:
            yield client
        finally:
            client.close()
