"""Roles that prepare or run a target: target (serve it), make-cert (a self-signed pair for TLS)."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from grpc_comm.security import make_certificate, server_security
from grpc_comm.server import Target
from grpc_comm.server import serve as serve_target
from grpc_comm.translate import Description
from grpc_comm.transport import Address
from inference.engine import Engine
from inference.errors import InvalidRequest
from outrider.artifacts import artifact_length, load_artifact, open_artifact, with_neuron_artifact
from outrider.models import PREFILL_NODES, Checkpoint, describe, find_checkpoint, load_model, security_of
from outrider.options import Options

if TYPE_CHECKING:
    from inference.backends.compiled import CompiledModel
    from inference.backends.eager import EagerModel

READY = "listening on "
"""Start of the stderr line that names the bound address, once sessions are taken."""


def serve(options: Options) -> int:
    """Serve a target until a signal."""
    server_security(security_of(options), Address(options.host, options.port))  # before minutes are spent on loading
    target = load_target(options)

    def ready(bound: Address) -> None:
        limits = f"rows {target.description.rows}, sequence length {target.description.sequence_length}"
        print(f"{READY}{bound} ({limits}); Ctrl-C ends", file=sys.stderr, flush=True)

    serve_target(target, ready)
    return 0


def load_target(options: Options) -> Target:
    """The target model in an engine, described for its clients."""
    if options.max_tree_nodes < 1:
        raise InvalidRequest(f"--max_tree_nodes {options.max_tree_nodes}: at least the root is needed")
    options = with_neuron_artifact(options)
    loaded = _load_artifact(options) if options.artifact else _load_checkpoint(options)
    model, checkpoint, vocabulary = loaded.model, loaded.checkpoint, loaded.checkpoint.tokenizer.vocabulary
    description = Description(
        server_version=_version(),
        model=checkpoint.name,
        model_fingerprint=loaded.fingerprint,
        tokenizer_fingerprint=checkpoint.tokenizer.fingerprint(),
        vocabulary=vocabulary,
        sequence_length=loaded.sequence_length,
        max_tree_nodes=loaded.max_tree_nodes,
        rows=model.rows,
        dtype=str(model.dtype).removeprefix("torch."),
        device=describe(model.device),
        stop_ids=checkpoint.config.stop_ids,
    )
    engine = Engine(model, sequence_length=loaded.sequence_length, max_tree_nodes=loaded.max_tree_nodes, vocabulary=vocabulary)
    return Target(engine, description, Address(options.host, options.port), security_of(options))


class _Loaded(NamedTuple):
    model: EagerModel | CompiledModel
    checkpoint: Checkpoint
    fingerprint: str
    sequence_length: int
    max_tree_nodes: int


def _load_checkpoint(options: Options) -> _Loaded:
    from inference.model.checkpoint import fingerprint

    checkpoint, nodes = find_checkpoint(options, "target"), options.max_tree_nodes
    length = checkpoint.sequence_length(options.sequence_length)
    model = load_model(options, checkpoint, rows=options.batch, sequence_length=length, spare=nodes, max_nodes=max(nodes, PREFILL_NODES))
    return _Loaded(model, checkpoint, fingerprint(checkpoint.directory), length, nodes)


def _load_artifact(options: Options) -> _Loaded:
    manifest, checkpoint = open_artifact(options)
    length, nodes = artifact_length(options, manifest), min(options.max_tree_nodes, manifest.max_tree_nodes)
    return _Loaded(load_artifact(options, manifest), checkpoint, manifest.model_fingerprint, length, nodes)


def make_cert(options: Options) -> int:
    """Write a self-signed authority and a certificate for --host."""
    hosts = list(dict.fromkeys([options.host, "localhost", "127.0.0.1"]))
    files = make_certificate(Path(options.out), hosts)
    print(f"target: --tls_cert {files.certificate} --tls_key {files.key}\ndraft:  --tls_ca {files.ca}", file=sys.stderr)
    return 0


def _version() -> str:
    try:
        return version("outrider")
    except PackageNotFoundError:  # run from a checkout that was not installed
        return "checkout"
