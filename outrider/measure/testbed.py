"""The test bed of a run: a target (started locally unless the options name a running one), an
emulated link to the target, and clients that share one loaded draft.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace

from inference.command import printable
from inference.drafters.growing_proposer import Draft
from inference.errors import InvalidRequest, OutriderError
from inference.loop.draft_tuning import TUNING
from outrider.client.client import Client, find_client_draft, open_client
from outrider.client.drafting import read_policy
from outrider.draft_methods import FoundDraft
from outrider.measure.journal import Journal, start_record
from outrider.measure.link import emulated_link
from outrider.measure.run import AGAIN, Arm, client_arm
from outrider.measure.verbs.options import Flags, LinkedOptions, RunOptions
from outrider.models.found_model import Capacity
from outrider.options.draft_flags import BESIDE, NONE
from outrider.options.groups import DeviceOptions
from outrider.options.network import ConnectionOptions
from outrider.options.roles import ClientRole
from outrider.target.spawn import Started, started, target_words


def start(
    options: RunOptions, role: str = "target", **flags: object
) -> AbstractContextManager[Started]:
    """Start the target of these options, with a batch of 1 unless --batch is set.

    flags: additional flags of the target
    """
    stated = {"batch": 1} | options.explicit()
    names = ("batch", "backend", "emulate", "measure_first", "usd_per_hour")
    words = target_words(options, **{name: stated.get(name) for name in names}, **flags)
    return started(role, words)


@contextmanager
def target_of(
    options: LinkedOptions, arms: Mapping[str, Flags]
) -> Iterator[tuple[ConnectionOptions, Started | None]]:
    """Yield the connection to the target that the options name. If they name none, start a target,
    with a draft on its device if an arm needs that.
    """
    if options.elsewhere:
        yield options, None
        return
    role, flags = "target", dict[str, object]()
    if any(BESIDE in arm.get("draft", options.draft) for arm in arms.values()):
        role = "fused_target"
        flags = {"draft_model": options.draft_model, "draft": options.method and options.draft}
    with start(options, role, **flags) as target:
        yield ConnectionOptions(target_host=target.address), target


@dataclass(frozen=True)
class SharedDraft(FoundDraft):
    """A draft that is loaded once for all clients of a run, which use it in turn."""

    room: int  # maximum over all clients of the ranked nodes of a row beyond its longest sequence
    loaded: list[Draft]

    def load(self, options: DeviceOptions, capacity: Capacity) -> Draft:
        if not self.loaded:
            nodes = max(capacity.max_nodes, self.room)
            self.loaded.append(
                super().load(options, capacity._replace(spare=self.room, max_nodes=nodes))
            )
        return self.loaded[0]


def _finder(roles: Sequence[ClientRole]) -> Callable[[ClientRole], FoundDraft]:
    """Return a function that finds a client's draft. Clients with equal drafts share the result."""
    shared = dict[tuple[str | None, str | None], SharedDraft]()
    room = max(TUNING.room, *(read_policy(role).max_ranked for role in roles if role.waits), 0)

    def find(role: ClientRole) -> FoundDraft:
        draft = role.method, role.draft_name
        if draft not in shared:
            shared[draft] = SharedDraft(**vars(find_client_draft(role)), room=room, loaded=[])
        return shared[draft]

    return find


Beside = Callable[[Client, list[Arm]], list[Arm]]
"""Extends a client's arms by arms without a client, such as other engines."""

OpenRole = Callable[[ConnectionOptions, Flags], ClientRole]
"""Returns a client's options for a connection and the flags of an arm."""


@dataclass(frozen=True)
class ArmSet:
    """The arms of a run and their options.

    role: builds a client's options
    arms: the client's flags by arm name, target-only first
    optional: arms that are skipped if they cannot be opened
    beside: adds arms without a client
    """

    role: OpenRole
    arms: Mapping[str, Flags]
    optional: Container[str] = ()
    beside: Beside = lambda client, arms: arms

    @contextmanager
    def opened(
        self, journal: Journal, connection: ConnectionOptions, delay_ms: float = 0.0
    ) -> Iterator[tuple[Client, list[Arm]]]:
        """Open all arms over a link; record the start. Yields target-only's client and the arms.

        delay_ms: of the link, one way
        """
        with ExitStack() as stack:
            route = connection
            if delay_ms:
                link = stack.enter_context(emulated_link(connection.addresses, delay_ms))
                route = connection.replace(target=None, target_host=link.address)
            roles = {name: self.role(route, flags) for name, flags in self.arms.items()}
            find, clients, left_out = _finder([*roles.values()]), dict[str, Client](), {}
            for name, role in roles.items():
                try:
                    client = open_client(role, is_local=connection.is_local, find=find)
                    clients[name] = _with_draft(stack.enter_context(client), role)
                except OutriderError as error:
                    if name not in self.optional:
                        raise
                    left_out[name] = printable(str(error))
            drafts = {
                name: find(roles[name]).model.fingerprint()
                for name in clients
                if roles[name].computable.method is not None
            }
            journal.start(start_record(clients, drafts, left_out))
            alone = next(iter(clients.values()))
            arms = [client_arm(name, client) for name, client in clients.items()]
            arms.insert(1, replace(arms[0], name=AGAIN))
            yield alone, self.beside(alone, arms)


def _with_draft(client: Client, role: ClientRole) -> Client:
    """Wait until the client has loaded its draft. Raises InvalidRequest if there is no draft."""
    client.wait()
    if client.draft is None and role.draft != NONE:
        raise InvalidRequest(
            f"--draft {role.draft}: {client.model} has no draft beside it; `outrider fused_target` "
            "serves one"
        )
    return client
