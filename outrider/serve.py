"""Roles that prepare or run a target: target (serve it, or only measure it), make-cert (a
self-signed pair for TLS), make-key.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from grpc_comm import keys_file
from grpc_comm.security import make_certificate, server_security
from grpc_comm.server.model_registry import Served
from grpc_comm.server.server import Target
from grpc_comm.server.server import serve as serve_target
from grpc_comm.tls_files import check_tls_files
from grpc_comm.translate import Description
from grpc_comm.transport import Address
from inference.backends.timed import TimedModel, TimeProfile, find_profile
from inference.engine.engine import Engine
from inference.errors import InvalidRequest
from inference.planner.profiling import emulated_target
from inference.times import Shape
from outrider.artifacts import artifact_length, load_artifact, open_artifact, with_neuron_artifact
from outrider.listed import lazily, load_listed, read_listed
from outrider.models import (
    PREFILL_NODES,
    Checkpoint,
    describe,
    find_checkpoint,
    load_model,
    security_of,
)
from outrider.observing import observed
from outrider.options import Options
from outrider.profiles import outrider_version, user_profiles

if TYPE_CHECKING:
    from inference.backends import Model
    from inference.backends.compiled import CompiledModel
    from inference.backends.eager import EagerModel
    from inference.backends.legacy_neuron import LegacyNeuronModel
    from outrider.fused import Drafts

    Beside = Callable[[Options, Model, Description], Drafts]

READY = "listening on "
"""Start of the stderr line that names the bound address, once sessions are taken."""


def serve(options: Options) -> int:
    """Serve a target until a signal; with --calibrate measure it afresh, say and keep what was
    found, and end.
    """
    if options.calibrate:
        return _calibrate(options)
    server_security(
        security_of(options), Address(options.host, options.port)
    )  # before minutes are spent on loading
    check_tls_files(security_of(options))
    with observed(options) as observer:
        target = replace(load_target(options), observer=observer)
        serve_target(target, lambda bound: _say_ready(target.description, bound), options.grace)
    if isinstance(target.engine.model, TimedModel):
        print(target.engine.model.account(), file=sys.stderr)
    return 0


def _calibrate(options: Options) -> int:
    from outrider.calibrate import described

    print(*described(load_target(options).description), sep="\n")
    return 0


def _say_ready(description: Description, bound: Address) -> None:
    limits = (
        f"rows {description.rows}, sequence length {description.sequence_length}, "
        f"{description.device}"
    )
    print(f"{READY}{bound} ({limits}); Ctrl-C ends", file=sys.stderr, flush=True)


def load_target(options: Options) -> Target:
    """What a target serves: its first model, loaded, and those that --models lists, on first use.

    Without a model on the command line the first of the list is the first. Role fused_target has a
    draft beside the first.
    """
    load_first = load_served
    if options.role == "fused_target":
        from outrider.fused import with_draft

        load_first = partial(load_served, beside=with_draft)
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
        Address(options.host, options.port),
        security=security_of(options),
        listed={name: lazily(name, settings, load_served) for name, settings in listed.items()},
        share_prefixes=options.share_prefixes,
        reflection=options.reflection,
        lease_seconds=options.lease,
    )


def load_served(options: Options, beside: Beside | None = None) -> Served:
    """A target model in an engine, described for its clients. beside: what makes its draft."""
    if options.max_tree_nodes < 1:
        raise InvalidRequest(
            f"--max_tree_nodes {options.max_tree_nodes}: at least the root is needed"
        )
    profile = find_profile(options.emulate) if options.emulate else None
    options = with_neuron_artifact(options)
    loaded = _load_artifact(options) if options.artifact else _load_checkpoint(options)
    model, checkpoint, vocabulary = (
        loaded.model,
        loaded.checkpoint,
        loaded.checkpoint.tokenizer.vocabulary,
    )
    where = describe(model.device) + (", chains only" if options.device == "neuron-legacy" else "")
    description = Description(
        server_version=outrider_version(),
        model=checkpoint.name,
        model_fingerprint=loaded.fingerprint,
        tokenizer_fingerprint=checkpoint.tokenizer.fingerprint(),
        vocabulary=vocabulary,
        sequence_length=loaded.sequence_length,
        max_tree_nodes=loaded.max_tree_nodes,
        rows=model.rows,
        dtype=loaded.dtype,
        device=profile.label(f"{checkpoint.name} on {where}") if profile else where,
        stop_ids=checkpoint.config.stop_ids,
        times=tuple(_times(loaded, profile, afresh=options.calibrate).items()),
        usd_per_hour=options.usd_per_hour or 0.0,
    )
    served = TimedModel(model, profile) if profile else model
    drafts = beside(options, served, description) if beside is not None else None
    engine = Engine(
        served,
        sequence_length=loaded.sequence_length,
        max_tree_nodes=loaded.max_tree_nodes,
        vocabulary=vocabulary,
        waiting=options.waiting,
        times=dict(description.times),
        branches=options.device != "neuron-legacy",
        host=drafts.host if drafts else None,
        graphs=drafts.graphs if drafts else None,
    )
    return Served(engine, drafts.description if drafts else description)


class _Loaded(NamedTuple):
    """made_from: what tells it apart from others that compute differently: its weights, and its
    artefact where there is one.
    """

    model: EagerModel | CompiledModel | LegacyNeuronModel
    checkpoint: Checkpoint
    fingerprint: str
    made_from: str
    sequence_length: int
    max_tree_nodes: int
    dtype: str


def _load_checkpoint(options: Options) -> _Loaded:
    from inference.model.checkpoint import fingerprint

    checkpoint, nodes = find_checkpoint(options, "target"), options.max_tree_nodes
    length = checkpoint.sequence_length(options.sequence_length)
    model = load_model(
        options,
        checkpoint,
        rows=options.batch,
        sequence_length=length,
        spare=nodes,
        max_nodes=max(nodes, PREFILL_NODES),
    )
    weights = fingerprint(checkpoint.directory)
    return _Loaded(
        model, checkpoint, weights, weights, length, nodes, str(model.dtype).removeprefix("torch.")
    )


def _load_artifact(options: Options) -> _Loaded:
    manifest, checkpoint = open_artifact(options)
    length, nodes = (
        artifact_length(options, manifest),
        min(options.max_tree_nodes, manifest.max_tree_nodes),
    )
    return _Loaded(
        load_artifact(options, manifest),
        checkpoint,
        manifest.model_fingerprint,
        manifest.digest(),
        length,
        nodes,
        manifest.dtype,
    )


def _times(loaded: _Loaded, emulated: TimeProfile | None, *, afresh: bool) -> dict[Shape, float]:
    """Seconds of a forward: kept from an earlier start, else or `afresh` measured now; of an
    emulated device its profile's.
    """
    if emulated is not None:
        return emulated_target(emulated, loaded.model.rows, loaded.max_tree_nodes)
    name, length, nodes = loaded.checkpoint.name, loaded.sequence_length, loaded.max_tree_nodes
    return user_profiles(afresh=afresh).target(name, loaded.made_from, loaded.model, length, nodes)


def make_cert(options: Options) -> int:
    """Write a self-signed authority and a certificate for --host."""
    hosts = list(dict.fromkeys([options.host, "localhost", "127.0.0.1"]))
    files = make_certificate(Path(options.out), hosts)
    print(
        f"target: --tls_cert {files.certificate} --tls_key {files.key}\ndraft:  --tls_ca "
        f"{files.ca}",
        file=sys.stderr,
    )
    return 0


def make_key(options: Options) -> int:
    """Add a key to --keys_file and print its token, which is stored nowhere."""
    if not (options.name and options.keys_file):
        raise InvalidRequest("a key needs a name and a file: --name NAME --keys_file FILE")
    token = keys_file.make_key(Path(options.keys_file), options.name)
    print(
        f"{options.name} may call; the token is shown this once, limits can be added to the entry "
        f"in {options.keys_file}:",
        file=sys.stderr,
    )
    print(token)
    return 0
