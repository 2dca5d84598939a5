"""The replicas of a target, and the order in which a session tries them.

The order is by rendezvous hashing (Thaler and Ravishankar, 1998): each session ranks all replicas
by a hash of its own key and the replica's address. So sessions are spread evenly without a shared
count, and when a replica ends, only its sessions move, each to the next replica in its order.
"""

from __future__ import annotations

import hashlib
import random
import socket
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress

from grpc_comm.client.channel import Channel, WrongSecurity
from grpc_comm.client.patience import Patience
from grpc_comm.security import SecurityOptions
from grpc_comm.translate import Description
from grpc_comm.transport import DNS, Address, Endpoint
from inference.errors import InvalidRequest, Mismatch, OutriderError, Unavailable

HEALTH_SECONDS = 2.0
"""Seconds between checks of a replica, and timeout of its answer, if there are several replicas."""

GATHER_SECONDS = 1.0
"""Seconds to wait for the other replicas once the first has answered."""

LOOK_SECONDS = 2.0
"""Maximum seconds between retries of a target that has not answered yet."""

RESOLVE_SECONDS = 5.0
"""Seconds between DNS look-ups of a name."""


def rendezvous(key: str, names: Iterable[str]) -> list[str]:
    """Return the names in the order in which a session with this key tries them."""
    return sorted(names, key=lambda name: hashlib.blake2b(f"{key}|{name}".encode()).digest())


def check_same(expected: Description, first: Address, actual: Description, second: Address) -> None:
    """Raise Mismatch unless both replicas have the same weights, tokenizer and precision."""
    if _identity(expected) != _identity(actual):
        raise Mismatch(
            f"replicas must serve the same target: {first} has {_summary(expected)}, {second} has "
            f"{_summary(actual)}"
        )


def _identity(description: Description) -> tuple[str, str, str]:
    return description.model_fingerprint, description.tokenizer_fingerprint, description.dtype


def _summary(description: Description) -> str:
    weights, tokenizer, dtype = _identity(description)
    return f"{description.model} (weights {weights[:12]}, tokenizer {tokenizer[:12]}, {dtype})"


class Replica:
    """A replica and its last known state.

    serves: whether the replica accepts sessions by its last answer; None before the first check
    description: the replica's description; None before its first answer, and after an outage
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.serves: bool | None = None
        self.description: Description | None = None

    def look(self, model: str, timeout: float) -> None:
        """Check whether the replica accepts sessions; fetch its description unless it is known.

        timeout: seconds for the description, for which the replica may have to load the model
        """
        try:
            self.channel.check_health(min(HEALTH_SECONDS, timeout))
            if self.description is None:
                self.description = self.channel.describe(model, timeout)
            self.serves = True
        except OutriderError:
            self.description, self.serves = None, False


class Replicas:
    """The replicas behind one or more endpoints. Thread-safe.

    description: the target's description, sent by the first replica that answered
    met: channel of that replica

    A single address is checked until it answers, and never again. Several addresses, or those of a
    DNS name, are checked periodically, each on a separate thread.

    timeout: seconds to wait for an answer
    patience: how long to retry a target that does not answer

    Raises Unavailable if no replica answers in time, and Mismatch if two are different targets.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        security: SecurityOptions,
        model: str,
        timeout: float,
        patience: Patience,
    ) -> None:
        if len(set(endpoints)) < len(endpoints):
            raise InvalidRequest(f"the same target twice: {', '.join(map(str, endpoints))}")
        self._endpoints, self._security = endpoints, security
        self._model, self._timeout = model, timeout
        self._changed, self._closed = threading.Condition(), threading.Event()
        self._replicas: dict[Address, Replica] = {}
        self._channels = weakref.WeakKeyDictionary[Channel, None]()  # includes former replicas
        has_names = any(endpoint.resolved for endpoint in endpoints)
        self._watched = has_names or len(endpoints) > 1
        try:
            self.met, self.description = self._meet(patience)
        except OutriderError:
            self.close()
            raise
        if has_names:
            threading.Thread(target=self._follow, name="outrider names", daemon=True).start()

    @property
    def several(self) -> bool:
        """Whether there is more than one replica."""
        return len(self._replicas) > 1

    def order(self, key: str) -> list[Channel]:
        """Return the channels in the order in which a session with this key tries them.

        Replicas that are not serving, or have not answered yet, come last. A replica that became
        a different target is omitted. Raises Mismatch if that leaves no replica.
        """
        with self._changed:
            replicas = {str(address): replica for address, replica in self._replicas.items()}
        ranked = [replicas[name] for name in rendezvous(key, replicas)]
        same = [replica for replica in ranked if self._is_target(replica.description)]
        if not same and ranked[0].description is not None:
            self._check(ranked[0].channel, ranked[0].description)
        return [replica.channel for replica in sorted(same, key=lambda replica: not replica.serves)]

    def round(self, key: str, at: Channel, *, leaving: bool) -> list[Channel]:
        """Return the channels to try for a session that was lost at replica `at`. It comes first,
        since it may still have the session, or last if the session is leaving it.
        """
        rest = [channel for channel in self.order(key) if channel is not at]
        return [*rest, at] if leaving else [at, *rest]

    def reach(self, channel: Channel, seconds: float, given_up: threading.Event) -> None:
        """Wait up to `seconds` for a replica to answer.

        Raises Unavailable, and Mismatch if the replica is a different target.
        """
        self._check(channel, channel.reach(self._model, seconds, given_up))

    def close(self) -> None:
        """Close all channels. Idempotent."""
        self._closed.set()
        for channel in list(self._channels):
            channel.close()

    def _is_target(self, description: Description | None) -> bool:
        """Return whether a replica with this description may be the target; True for None."""
        return description is None or _identity(description) == _identity(self.description)

    def _check(self, channel: Channel, description: Description) -> None:
        check_same(self.description, self.met.address, description, channel.address)

    def _meet(self, patience: Patience) -> tuple[Channel, Description]:
        """Return the first replica that answers. Retry until the patience is over."""
        deadline = time.monotonic() + patience.seconds
        try:
            return self._look()
        except WrongSecurity:
            raise
        except Unavailable as error:
            failure = error
        if patience.seconds:
            patience.notice(f"{failure}; retrying for {patience.seconds:.0f} s")
        given_up = patience.given_up
        while (seconds_left := deadline - time.monotonic()) > 0 and not given_up.is_set():
            given_up.wait(min(random.uniform(0, LOOK_SECONDS), seconds_left))  # noqa: S311
            try:
                return self._look_again(max(deadline - time.monotonic(), LOOK_SECONDS), given_up)
            except Unavailable as error:
                failure = error
        raise failure

    def _look(self) -> tuple[Channel, Description]:
        """Return the first replica that answers, after waiting briefly for the others."""
        if not self._replicas:
            self._find()
        replicas = list(self._replicas.values())
        if self._watched:
            self._await_all(replicas)
        met = [
            (replica.channel, replica.description)
            for replica in replicas
            if replica.description is not None
        ]
        if not met:  # also for a single address; describe() raises the clearest error
            last = replicas[-1].channel
            return last, last.describe(self._model, self._timeout)
        (channel, description), *rest = met
        for replica, theirs in rest:
            check_same(description, channel.address, theirs, replica.address)
        return channel, description

    def _look_again(self, seconds: float, given_up: threading.Event) -> tuple[Channel, Description]:
        """Wait up to `seconds` for a replica to answer, and return it."""
        if not self._watched:
            (replica,) = self._replicas.values()
            return replica.channel, replica.channel.reach(self._model, seconds, given_up)
        with self._changed:
            self._changed.wait_for(
                lambda: any(replica.serves for replica in self._replicas.values()),
                seconds if self._replicas else 0,
            )
        return self._look()

    def _await_all(self, replicas: Sequence[Replica]) -> None:
        """Wait until all replicas have answered. Once one of them is serving, wait briefly."""

        def all_answered() -> bool:
            return all(replica.serves is not None for replica in replicas)

        with self._changed:
            self._changed.wait_for(
                lambda: all_answered() or any(replica.serves for replica in replicas), self._timeout
            )
            self._changed.wait_for(all_answered, min(GATHER_SECONDS, self._timeout))

    def _find(self) -> None:
        """Update the replicas to the current addresses of the endpoints; sessions at a removed one
        keep its channel. Raises Unavailable if a name has no address.
        """
        hosts = {
            address: endpoint.address.host if endpoint.resolved else ""
            for endpoint in self._endpoints
            for address in (resolve(endpoint.address) if endpoint.resolved else [endpoint.address])
        }
        with self._changed:
            for address in self._replicas.keys() - hosts.keys():
                del self._replicas[address]
            for address, host in hosts.items():
                if address not in self._replicas:
                    self._add(address, host)

    def _add(self, address: Address, name: str) -> None:
        replica = self._replicas[address] = Replica(Channel(address, self._security, name))
        self._channels[replica.channel] = None
        if self._watched:
            watch = threading.Thread(
                target=self._watch, args=(replica,), name="outrider replica", daemon=True
            )
            watch.start()

    def _watch(self, replica: Replica) -> None:
        """Check a replica periodically for as long as it belongs to the target."""
        address, belongs = replica.channel.address, True
        while belongs and not self._closed.is_set():
            replica.look(self._model, self._timeout)
            with self._changed:
                self._changed.notify_all()
                belongs = self._replicas.get(address) is replica
            self._closed.wait(HEALTH_SECONDS)

    def _follow(self) -> None:
        """Look up the names periodically; keep the old addresses if a look-up fails."""
        while not self._closed.wait(RESOLVE_SECONDS):
            with suppress(Unavailable):
                self._find()


def resolve(address: Address) -> list[Address]:
    """Return an address for each IP address that DNS has for the host; raise Unavailable."""
    try:
        infos = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Unavailable(f"{DNS}{address}: the name has no address ({error})") from error
    return list(dict.fromkeys(Address(str(name[0]), address.port) for *_, name in infos))
