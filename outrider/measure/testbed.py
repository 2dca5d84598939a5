"""The test bed of a run: a target, which is started here unless one is named, an emulated link to
it, and clients that share one loaded draft.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from inference.draft_tuning import TUNING
from inference.drafters.draft import Draft
from outrider.client.client import Client, find_client_draft, open_client
from outrider.client.drafting import read_policy
from outrider.draft_methods import FoundDraft
from outrider.measure.arms import Arm, client_arm, with_again
from outrider.measure.environment import over_link, start_record
from outrider.measure.journal import Journal
from outrider.measure.link import LinkShape
from outrider.measure.options import LinkedOptions, RunOptions
from outrider.measure.run import Run
from outrider.measure.tasks import Task
from outrider.models.capacity import Capacity
from outrider.options.groups import DeviceOptions
from outrider.options.network import ConnectionOptions
from outrider.options.roles import ClientRole
from outrider.target.spawn import StartedTarget, started, target_words


def start(
    options: RunOptions, role: str = "target", **flags: object
) -> AbstractContextManager[StartedTarget]:
    """Start the target of these options. It has one row unless --batch says otherwise.

    flags: of the target, beside those given
    """
    stated = {"batch": 1} | options.explicit()
    names = ("batch", "backend", "emulate", "measure_first", "usd_per_hour")
    words = target_words(options, **{name: stated.get(name) for name in names}, **flags)
    return started(role, words)


@contextmanager
def target_of(
    options: LinkedOptions, role: str = "target", **flags: object
) -> Iterator[tuple[ConnectionOptions, StartedTarget | None]]:
    """The target that the options name; without one, a target of this role is started."""
    if options.elsewhere:
        yield options.connection, None
        return
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
    """A function that finds the draft of a client, once for all clients of the same method."""
    shared = dict[str | None, SharedDraft]()
    room = max(TUNING.room, *(read_policy(one).most_ranked for one in roles if one.waits), 0)

    def find(role: ClientRole) -> FoundDraft:
        if role.method not in shared:
            shared[role.method] = SharedDraft(**vars(find_client_draft(role)), room=room, loaded=[])
        return shared[role.method]

    return find


Beside = Callable[[Client, list[Arm]], AbstractContextManager[list[Arm]]]
"""Adds arms that are no client's, such as other engines, to ours."""


def measure(
    options: RunOptions,
    journal: Journal,
    there: ConnectionOptions,
    arms: Mapping[str, Mapping[str, Any]],
    tasks: Callable[[Client], Sequence[Task]],
    *,
    repeats: int,
    trip: float = 0.0,
    bandwidth: float | None = None,
    beside: Beside = lambda client, arms: nullcontext(arms),
    warm: bool = True,
) -> list[Client]:
    """Generate the journal's missing texts, over one link. Returns the clients, closed.

    arms: flags of a client by the name of each arm, target-only first if it is among them
    trip: emulated round trip in milliseconds
    bandwidth: of the emulated link, in Mbit/s; None for no limit
    beside: adds further arms
    warm: let every arm generate a few tokens before anything counts
    """
    with ExitStack() as stack:
        reached = stack.enter_context(over_link(there, LinkShape(trip / 2, bandwidth)))
        roles = {name: options.role(reached, flags) for name, flags in arms.items()}
        find, clients = _finder([*roles.values()]), dict[str, Client]()
        for name, role in roles.items():
            opened = open_client(role, is_local=there.is_local, find=find)
            clients[name] = stack.enter_context(opened)
        for client in clients.values():
            client.wait()
        first = next(iter(clients.values()))
        drafts = {
            name: find(role).fingerprint()
            for name, role in roles.items()
            if role.computable.method is not None
        }
        journal.start(start_record(first.target, drafts, shared=first.shares_device))
        ours = with_again([client_arm(name, client) for name, client in clients.items()])
        every = stack.enter_context(beside(first, ours))
        Run(journal, every, trip, warm=warm).make(tasks(first), range(repeats))
    return [*clients.values()]
