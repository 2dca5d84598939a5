"""Roles target and fused_target: load a model into an engine (`load_served`), describe it to its
clients, and serve it until a signal.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from grpc_comm.observability.endpoint import serve_metrics
from grpc_comm.observability.log import start_log
from grpc_comm.observability.metrics import Metrics
from grpc_comm.server.guard import server_security as check_security
from grpc_comm.server.model_registry import Served
from grpc_comm.server.server import BackgroundServer, Target
from grpc_comm.server.server import serve as serve_target
from grpc_comm.translate import Description
from grpc_comm.transport import Address, check_free, parse_address
from inference.backends.gguf.model import GgufModel
from inference.backends.neuron.sdk import has_device
from inference.backends.wrappers import TimedModel
from inference.command import logged, messages_to, say
from inference.engine.batch_runner import collect_rarely
from inference.engine.colocated.graph_rounds import RoundModel
from inference.engine.engine import Engine
from inference.errors import InvalidRequest
from inference.planner.profiling import CONTEXT
from inference.text.grammar import Grammars
from inference.times import Times
from inference.times_file import Profile, find_profile
from outrider.installation import outrider_version
from outrider.measure.link import emulated_link
from outrider.models.artifacts import (
    artifact_length,
    load_artifact,
    open_artifact,
    with_neuron_artifact,
)
from outrider.models.devices import describe
from outrider.models.found_model import Capacity, FoundModel, LoadedModel
from outrider.models.loading import PREFILL_NODES, find_target
from outrider.models.profiles import TargetTimes, user_profiles
from outrider.options.network import ConnectionOptions, ObservingOptions
from outrider.options.roles import FusedTargetRole, ServingRole, TargetRole
from outrider.processes import READY
from outrider.target.model_list import lazily, load_listed, read_listed

if TYPE_CHECKING:
    from inference.backends import Model
    from outrider.target.colocated_draft import Drafts

    MakeDraft = Callable[[Model, Description, Grammars | None], Drafts]


def serve(options: ServingRole) -> int:
    """Serve a target until a signal."""
    security = options.security  # checked before loading, which takes minutes
    check_security(security, Address(options.host, options.port))
    check_free(Address(options.host, options.port))
    if options.metrics is not None:
        check_free(options.metrics)
    start, target = time.perf_counter(), load_target(options)
    description, seconds = target.description, time.perf_counter() - start

    stack = ExitStack()

    def say_ready(bound: Address) -> None:
        if options.rtt is not None:
            bound = stack.enter_context(emulated_distance(options, bound))
        length = description.sequence_length
        limits = f"rows {description.rows}, sequence length {length}, {description.device}"
        say(f"{READY}{bound} ({limits}); ready in {seconds:.1f} s, Ctrl-C stops")
        say(f"try it: {chat_command(options, bound)}")
        notify("READY=1", f"STATUS={description.model} on {bound}")

    collect_rarely()
    with stack, observed(target.metrics, options):
        serve_target(target, say_ready, options.grace, _notify_of_end)
    if isinstance(target.engine.model, TimedModel):
        say(target.engine.model.account())
    return 0


def chat_command(options: ServingRole, bound: Address) -> str:
    """Return the `outrider chat` command for this target."""
    flags = []
    if str(bound) != ConnectionOptions().addresses:
        anywhere = bound.host in ("0.0.0.0", "::")  # noqa: S104  # clients use the host's name
        flags.append(f"--target_host {bound._replace(host='HOST') if anywhere else bound}")
    if options.tls_cert is not None:
        flags.append("--tls_ca CA_FILE")
    if options.keys_file is not None or options.token_file is not None:
        flags.append("--token_file FILE")
    return " ".join(["outrider chat", *flags])


def _notify_of_end() -> None:
    notify("STOPPING=1", "STATUS=open sessions are asked to leave")


def load_target(options: ServingRole) -> Target:
    """Load the default model of a target. The models of --models are loaded on first use.

    Without a model on the command line, the first model of the list is the default. With role
    fused_target, the target has a draft.
    """
    load_first = _load_with_draft if isinstance(options, FusedTargetRole) else load_served
    listed = read_listed(Path(options.models), options) if options.models else {}
    if listed and not (options.model or options.target_model or options.artifact):
        name = next(iter(listed))
        first = load_listed(name, listed.pop(name), load_first)
    else:
        first = load_first(options)
    if first.description.model in listed:
        raise InvalidRequest(
            f"--models lists {first.description.model}, which is the name of the model on the "
            "command line: name it otherwise"
        )
    return Target(
        first.engine,
        first.description,
        Address("127.0.0.1", 0) if options.rtt else Address(options.host, options.port),
        security=options.security,
        listed={name: lazily(name, settings, load_served) for name, settings in listed.items()},
        share_prefixes=options.share_prefixes,
    )


def _load_with_draft(options: ServingRole) -> Served:
    from outrider.target.colocated_draft import with_draft

    assert isinstance(options, FusedTargetRole)
    options = with_neuron_artifact(options)
    return load_served(options, partial(with_draft, options))


def load_served(options: ServingRole, make_draft: MakeDraft | None = None) -> Served:
    """Load a target model into an engine, and describe it for clients.

    make_draft: creates the draft on the target's host
    """
    profile = find_profile(options.emulate) if options.emulate else None
    options = with_neuron_artifact(options)
    loaded = _load_artifact(options) if options.artifact else _load_checkpoint(options)
    if options.device == "auto" and str(loaded.model.device) == "cpu" and has_device():
        say("this machine has an unused Neuron device: --device neuron uses it")
    model, checkpoint = loaded.model, loaded.checkpoint
    times = _times(options, loaded, profile)
    where = describe(model.device, checkpoint.conditions(model).threads)
    where += ", chains only" * (not model.branches)
    settings = checkpoint.tokenizer.settings
    settings.check_size()
    description = Description(
        server_version=outrider_version(),
        model=checkpoint.name,
        model_fingerprint=loaded.fingerprint,
        tokenizer_fingerprint=checkpoint.tokenizer.fingerprint(),
        vocabulary=checkpoint.tokenizer.vocabulary,
        sequence_length=loaded.sequence_length,
        max_tree_nodes=loaded.max_tree_nodes,
        rows=model.rows,
        dtype=loaded.dtype,
        device=_device(options, profile, f"{checkpoint.name} on {where}") if profile else where,
        stop_ids=checkpoint.stop_ids,
        times=tuple(times.table.items()),
        usd_per_hour=options.usd_per_hour or 0.0,
        rules=model.masks,
        emulated=profile is not None,
        settings_digest=settings.digest,
        tokenizer_settings=settings.content,
    )
    served = TimedModel(model, profile) if profile else model
    grammars = _grammars(checkpoint) if model.masks else None
    drafts = make_draft(served, description, grammars) if make_draft is not None else None
    engine = Engine(
        served,
        sequence_length=loaded.sequence_length,
        max_tree_nodes=loaded.max_tree_nodes,
        vocabulary=description.vocabulary,
        times=times.times,
        drafter=drafts.drafter if drafts else None,
        graphs=drafts.graphs if drafts else None,
        grammars=grammars,
        when_idle=times.when_idle,
    )
    return Served(engine, drafts.description if drafts else description)


def _device(options: ServingRole, profile: Profile, choices_by: str) -> str:
    away = f", {options.rtt:g} ms away" if options.rtt else ""
    return profile.label(choices_by) + away


@contextmanager
def emulated_distance(options: ServingRole, bound: Address) -> Iterator[Address]:
    """Put the emulated link of --rtt in front of a target that listens at `bound`; yield the
    address for clients.
    """
    assert options.rtt is not None, "the options have --rtt"
    listen = str(Address(options.host, options.port))
    with emulated_link(str(bound), options.rtt / 2, listen) as link:
        yield parse_address(link.address)


@contextmanager
def observed(metrics: Metrics, options: ObservingOptions) -> Iterator[None]:
    """Start the log and, if an address is given, serve metrics until the context ends.

    Raises InvalidRequest if metrics cannot be served at the configured address.
    """
    start_log(options.log, "info" if options.log == "json" else "warning")
    if options.metrics is None:
        yield
        return
    with serve_metrics(metrics, options.metrics) as bound:
        say(f"metrics on http://{bound}/metrics, health on http://{bound}/healthz")
        yield


def notify(*states: str) -> None:
    """Send states such as READY=1 to the service manager, if there is one."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):  # an abstract Unix socket
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto("\n".join(states).encode(), address)
    except OSError as error:
        say(f"cannot notify the service manager of {states[0]}: {error.strerror or error}")


class RunningTarget:
    """A context manager: a target on threads of this process. Messages go to the logger `outrider`.

    address: HOST:PORT, with the bound port
    """

    def __init__(self, options: TargetRole) -> None:
        security = options.security
        check_security(security, Address(options.host, options.port))
        self._stack = ExitStack()
        self._stack.enter_context(messages_to(logged))
        try:
            self._server = BackgroundServer(load_target(options))
            self._stack.callback(self._server.stop, options.grace)
            address = self._server.address
            if options.rtt is not None:
                address = self._stack.enter_context(emulated_distance(options, address))
        except BaseException:
            self._stack.close()
            raise
        self.address = str(address)

    def __repr__(self) -> str:
        return f"RunningTarget(address={self.address!r})"

    def close(self) -> None:
        """Stop the target. Open sessions may continue for `grace` seconds. Idempotent."""
        self._stack.close()

    def __enter__(self) -> RunningTarget:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class _LoadedTarget(NamedTuple):
    """A model on its device, and its description for clients."""

    model: LoadedModel
    checkpoint: FoundModel
    fingerprint: str
    identity: str  # key of its stored times: the weights, and the artefact if any
    sequence_length: int
    max_tree_nodes: int
    dtype: str


def _grammars(checkpoint: FoundModel) -> Grammars:
    """Return grammars for the model's tokenizer. Read it now, since reading blocks all threads."""
    tokenizer = checkpoint.tokenizer
    grammars = Grammars(tokenizer.to_json(), tokenizer.vocabulary, sorted(checkpoint.stop_ids))
    if grammars.ends_texts:
        grammars.prepare()
    return grammars


def _load_checkpoint(options: ServingRole) -> _LoadedTarget:
    checkpoint: FoundModel = find_target(options)
    nodes = options.max_tree_nodes
    length = checkpoint.sequence_length(options.sequence_length)
    checkpoint = checkpoint.settled(options, drafts=False)
    model = checkpoint.load(
        options,
        Capacity(options.batch, length, nodes, max(nodes, PREFILL_NODES)),
    )
    weights, offload = checkpoint.fingerprint(), options.layer_offload
    identity = f"{weights}, layers on {offload}" if offload else weights
    return _LoadedTarget(
        model, checkpoint, weights, identity, length, nodes, str(model.dtype).removeprefix("torch.")
    )


def _load_artifact(options: ServingRole) -> _LoadedTarget:
    manifest, checkpoint = open_artifact(options)
    length, nodes = (
        artifact_length(options, manifest),
        min(options.max_tree_nodes, manifest.max_tree_nodes),
    )
    return _LoadedTarget(
        load_artifact(options, manifest),
        checkpoint,
        manifest.model_fingerprint,
        manifest.digest(),
        length,
        nodes,
        manifest.dtype,
    )


def _times(options: ServingRole, loaded: _LoadedTarget, emulated: Profile | None) -> TargetTimes:
    """Return the times of a forward pass: of an emulated device, else stored or measured times."""
    if emulated is not None:
        table = emulated.table(CONTEXT)
        return TargetTimes(Times(table, measured=True), table)
    if not loaded.model.branches or isinstance(loaded.model, RoundModel | GgufModel):
        options = options.replace(measure_first=True)  # its state is more than KV slots
    profiles = user_profiles(options)
    length, nodes = loaded.sequence_length, loaded.max_tree_nodes
    return profiles.target(loaded.checkpoint, loaded.identity, loaded.model, length, nodes)
