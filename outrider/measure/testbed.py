"""The test bed of a run: a target, which is started here unless one is named, an emulated link to
it, and clients that share one loaded draft.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace

from inference.command import printable
from inference.drafters.draft import Draft
from inference.errors import InvalidRequest, OutriderError
from inference.loop.draft_tuning import TUNING
from outrider.client.client import Client, find_client_draft, open_client
from outrider.client.drafting import read_policy
from outrider.draft_methods import FoundDraft
from outrider.measure.arms import AGAIN, Arm, client_arm
from outrider.measure.environment import start_record
from outrider.measure.journal import Journal
from outrider.measure.link import NO_LINK, LinkShape, shaped_link
from outrider.measure.verbs.options import Flags, LinkedOptions, RunOptions
from outrider.models.capacity import Capacity
from outrider.options.draft_flags import BESIDE, NONE
from outrider.options.groups import DeviceOptions
from outrider.options.network import ConnectionOptions
from outrider.options.roles import ClientRole
from outrider.target.spawn import Started, started, target_words


def start(
    options: RunOptions, role: str = "target", **flags: object
) -> AbstractContextManager[Started]:
    """Start the target of these options. It has one row unless --batch says otherwise.

    flags: of the target, beside those given
    """
    stated = {"batch": 1} | options.explicit()
    names = ("batch", "backend", "emulate", "measure_first", "usd_per_hour")
    words = target_words(options, **{name: stated.get(name) for name in names}, **flags)
    return started(role, words)


@contextmanager
def target_of(
    options: LinkedOptions, arms: Mapping[str, Flags]
) -> Iterator[tuple[ConnectionOptions, Started | None]]:
    """The target that the options name; without one, a target is started, with a draft beside it
    if an arm needs one.
    """
    if options.elsewhere:
        yield options.connection, None
        return
    role, flags = "target", dict[str, object]()
    if any(BESIDE in arm.get("draft", options.draft) for arm in arms.values()):
        role = "fused_target"
        flags = {"draft_model": options.draft_model, "draft": options.method and options.draft}
    with start(options, role, **flags) as target:
        yield options.connection.replace(target_host=target.address), target


@dataclass(frozen=True)
class SharedDraft(FoundDraft):
    """A draft that is loaded once, for all clients of a run. They generate their texts in turn."""

    room: int  # nodes that a row may have ranked beyond its longest text, by any client
    loaded: list[Draft]

    def load(self, options: DeviceOptions, capacity: Capacity) -> Draft:
        if not self.loaded:
            nodes = max(capacity.max_nodes, self.room)
            self.loaded.append(
                super().load(options, capacity._replace(spare=self.room, max_nodes=nodes))
            )
        return self.loaded[0]


def _finder(roles: Sequence[ClientRole]) -> Callable[[ClientRole], FoundDraft]:
    """A function that finds the draft of a client, once for all clients of the same draft."""
    shared = dict[tuple[str | None, str | None], SharedDraft]()
    room = max(TUNING.room, *(read_policy(role).most_ranked for role in roles if role.waits), 0)

    def find(role: ClientRole) -> FoundDraft:
        draft = role.method, role.draft_name
        if draft not in shared:
            shared[draft] = SharedDraft(**vars(find_client_draft(role)), room=room, loaded=[])
        return shared[draft]

    return find


Beside = Callable[[Client, list[Arm]], list[Arm]]
"""Adds arms that are no client's, such as other engines, to ours."""

OpenRole = Callable[[ConnectionOptions, Flags], ClientRole]
"""The options of a client with these flags, on this connection."""


@dataclass(frozen=True)
class ArmSet:
    """The arms of a run and their options.

    role: the options of a client
    arms: flags of a client by the name of each arm, target-only first
    optional: arms that are left out where they cannot be opened
    beside: adds further arms
    """

    role: OpenRole
    arms: Mapping[str, Flags]
    optional: Container[str] = ()
    beside: Beside = lambda client, arms: arms

    @contextmanager
    def opened(
        self, journal: Journal, there: ConnectionOptions, link: LinkShape = NO_LINK
    ) -> Iterator[tuple[Client, list[Arm]]]:
        """Yield the client of target-only and all arms, over this link. Records a start."""
        with ExitStack() as stack:
            reached = there
            if link != NO_LINK:
                address = stack.enter_context(shaped_link(there.addresses, link)).address
                reached = there.replace(target=None, target_host=address)
            roles = {name: self.role(reached, flags) for name, flags in self.arms.items()}
            find, clients, left_out = _finder([*roles.values()]), dict[str, Client](), {}
            for name, role in roles.items():
                try:
                    client = open_client(role, is_local=there.is_local, find=find)
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
    """The client, whose draft is loaded. Raises InvalidRequest without the draft of its options."""
    client.wait()
    if client.draft is None and role.draft != NONE:
        raise InvalidRequest(
            f"--draft {role.draft}: {client.model} has no draft beside it; `outrider fused_target` "
            "serves one"
        )
    return client
