"""Builds a target for trn1, inf2 or trn2 with NxD Core's ModelBuilder (V2): weights dealt out by
rank, all graphs in one file.

Needs AWS's packages and no device: a host without one is told the platform by
NEURON_PLATFORM_TARGET_OVERRIDE. The graphs keep their caches as state, reassigned out of place, and
are told apart by the names and shapes of their inputs. Written against the documented interface and
run through a strict stand-in (tests/fake_neuron.py); not yet run on hardware.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from compile.parallel import parallel_config, parallel_layers, parallel_tensors
from compile.spec import CompileSpec
from inference.artifact import Bucket
from inference.backends.neuron import COPY, COPY_RECORD, PACKAGE, SHARD
from inference.backends.neuron_sdk import (
    Sdk,
    has_device,
    instance_family,
    load_sdk,
    logical_cores,
    sdk_versions,
)
from inference.errors import BadArtifact, InvalidRequest
from inference.model.checkpoint import DTYPES, load_decoder
from inference.model.config import ModelConfig, read_config
from inference.model.decoder import Decoder
from inference.model.round_graph import StatefulRoundGraph
from inference.model.sampler import add_in_halves
from inference.model.verify_graph import StatefulGraph, copy_inputs, example_inputs

OVERRIDE = "NEURON_PLATFORM_TARGET_OVERRIDE"
PLATFORMS = {"trn1": "trn1", "inf2": "trn1", "trn2": "trn2"}
"""Targets, and the platform that each is compiled for."""

Stateful = StatefulGraph | StatefulRoundGraph
"""The module that all graphs of a package are."""

_OURS = ("--target", "--lnc")
_COMPILERS_AT_ONCE = 4


class Toolchain:
    """What every Neuron builder says of its files, and AWS's packages, aimed at the spec's
    target when they are first asked for.
    """

    def __init__(self, spec: CompileSpec, interface: str) -> None:
        if spec.target not in PLATFORMS:
            raise InvalidRequest(
                f"--target {spec.target}: the Neuron builders make {', '.join(PLATFORMS)}"
            )
        self._target, self.logical = spec.target, logical_cores(spec.target)
        self.flags = compiler_flags(spec, self.logical)
        self.host = {
            "family": spec.target,
            "logical_cores": str(self.logical),
            "interface": interface,
        }

    @cached_property
    def sdk(self) -> Sdk:
        sdk_versions()
        aim(self._target)
        return load_sdk()

    @contextmanager
    def working(self) -> Iterator[Path]:
        """The compiler's directory; kept, and named by the BadArtifact, when it fails."""
        work = Path(tempfile.mkdtemp(prefix="outrider-neuron-"))
        try:
            yield work
        except RuntimeError as error:
            raise BadArtifact(
                f"the Neuron compiler failed: {_cause(error)}. Its files and logs are in {work}"
            ) from error
        shutil.rmtree(work)


class NeuronBuilder:
    """The Builder for Neuron targets; see compile.build."""

    def __init__(self, spec: CompileSpec, checkpoint_directory: Path, vocabulary: int) -> None:
        self.target, self._tools = spec.target, Toolchain(spec, "model_builder")
        self._spec, self._checkpoint, self._vocabulary = spec, checkpoint_directory, vocabulary
        self._config = read_config(checkpoint_directory)
        self._dealt = parallel_config(self._config, spec.tensor_parallel)
        self._dtype = DTYPES[spec.dtype]

    def prepare(self, directory: Path) -> list[str]:
        """The weights, one file a rank."""
        spec, sdk, named = self._spec, self._tools.sdk, self._weights()
        with self._ranks(), sdk.init_on_device(torch.device("meta")):
            graph = self._graph("meta")
            for rank in range(
                spec.tensor_parallel
            ):  # one at a time: a rank's share is let go before the next is cut
                sdk.shard_checkpoint(
                    checkpoint=dict(named),
                    model=graph,
                    start_rank=rank,
                    end_rank=rank,
                    serialize_path=str(directory / "weights"),
                )
        return [SHARD.format(rank) for rank in range(spec.tensor_parallel)]

    def build(self, bucket: Bucket, directory: Path) -> list[str]:
        """What the graph will be: the names, shapes and types it is routed by. All graphs are
        compiled together, by `finish`.
        """
        return [
            self._record(
                directory,
                f"graphs/{bucket.name}.json",
                self._inputs(bucket),
                {"levels": bucket.levels},
            )
        ]

    def finish(self, directory: Path, buckets: Sequence[Bucket]) -> list[str]:
        """Trace and compile every graph into one package, without weights; with several rows
        also the one that copies a row.
        """
        check_routes(buckets)
        with self._tools.working() as work, self._ranks():
            model = self._compile(buckets, work)
            (directory / PACKAGE).parent.mkdir(parents=True, exist_ok=True)
            model.save(str(directory / PACKAGE), save_weights=False)
        copying = (
            [self._record(directory, COPY_RECORD, copy_inputs(self._spec.rows), {})]
            if self._spec.rows > 1
            else []
        )
        return [PACKAGE, *copying]

    def _record(
        self,
        directory: Path,
        name: str,
        inputs: Mapping[str, torch.Tensor],
        more: Mapping[str, Any],
    ) -> str:
        """Write what a graph takes; returns the file's name."""
        described = {
            name: [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
            for name, tensor in inputs.items()
        }
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            json.dumps({"inputs": described, **more, "flags": render(self._tools.flags)}, indent=1)
            + "\n",
            encoding="utf-8",
        )
        return name

    def versions(self) -> Mapping[str, str]:
        return sdk_versions()

    def host(self) -> Mapping[str, str]:
        return self._tools.host

    def flags(self) -> Mapping[str, str]:
        return self._tools.flags

    @contextmanager
    def _ranks(self) -> Iterator[None]:
        """The parallel state in which one process lays out the program of all ranks."""
        ranks = self._spec.tensor_parallel
        with self._tools.sdk.parallel_state(
            world_size=ranks, tensor_model_parallel_size=ranks, lnc_size=self._tools.logical
        ):
            yield

    def _weights(self) -> dict[str, Tensor]:
        """All weights, still undivided, by the names that the graph knows them by."""
        return self._weights_of(self._checkpoint, self._config, "decoder")

    def _weights_of(self, checkpoint: Path, config: ModelConfig, name: str) -> dict[str, Tensor]:
        positions, device = self._spec.sequence_length, torch.device("cpu")
        whole = load_decoder(
            checkpoint,
            positions=positions,
            vocabulary=self._vocabulary,
            dtype=self._dtype,
            device=device,
        )
        tensors = parallel_tensors(whole.named_parameters(), config, self._spec.tensor_parallel)
        tensors |= {"cos": whole.cos, "sin": whole.sin}
        return {f"{name}.{key}": tensor.detach() for key, tensor in tensors.items()}

    def _inputs(self, bucket: Bucket) -> dict[str, Tensor]:
        """An idle call of the bucket's graph."""
        return example_inputs(bucket)

    def _graph(self, device: str) -> Stateful:
        """One rank's module, its weights not filled in."""
        return (
            StatefulGraph(
                self._rank_decoder(self._dealt),
                *self._rank_caches(self._dealt, device),
                1,
                add_in_halves,
            )
            .requires_grad_(False)
            .eval()
        )

    def _rank_decoder(self, dealt: ModelConfig) -> Decoder:
        decoder = Decoder(
            dealt,
            self._spec.sequence_length,
            self._vocabulary,
            parallel_layers(self._tools.sdk, self._dtype),
        )
        for parameter in decoder.parameters():
            parameter.data = parameter.data.to(self._dtype)
        for name in (
            "cos",
            "sin",
        ):  # constants that travel with the weights: only buffers that change are state
            decoder.register_buffer(name, decoder.get_buffer(name), persistent=True)
        return decoder

    def _rank_caches(self, dealt: ModelConfig, device: str) -> tuple[Tensor, Tensor]:
        spec = self._spec
        shape = (
            dealt.layers,
            spec.rows,
            dealt.kv_heads // spec.tensor_parallel,
            spec.cache_slots,
            dealt.head_dim,
        )
        return torch.zeros(shape, dtype=self._dtype, device=device), torch.zeros(
            shape, dtype=self._dtype, device=device
        )

    @torch.no_grad()
    def _compile(self, buckets: Sequence[Bucket], work: Path) -> Any:
        """An NxDModel of all graphs, which share one module, one set of weights and one state."""
        graph = self._graph("cpu")
        builder = self._tools.sdk.model_builder(graph)
        for bucket in buckets:
            graph.levels = bucket.levels
            builder.trace(kwargs=self._inputs(bucket), tag=bucket.name)
        names = [bucket.name for bucket in buckets]
        if self._spec.rows > 1:
            builder.trace(kwargs=copy_inputs(self._spec.rows), tag=COPY)
            names.append(COPY)
        arguments = dict.fromkeys(names, render(self._tools.flags))
        workers = max(1, min(_COMPILERS_AT_ONCE, (os.cpu_count() or 1) // 2))
        return builder.compile(
            compiler_workdir=str(work), compiler_args=arguments, max_workers=workers
        )


def compiler_flags(spec: CompileSpec, logical: int) -> dict[str, str]:
    """neuronx-cc's flags: ours, then the spec's, which may replace all but the target and its
    cores.
    """
    flags = {
        "--target": spec.target,
        "--lnc": str(logical),
        "--model-type": "transformer",
        "--auto-cast": "none",
    }
    if spec.target != "trn2":
        flags["--enable-saturate-infinity"] = ""
    taken = [flag for flag in _OURS if flag in spec.compiler_flags]
    if taken:
        raise InvalidRequest(
            f"compiler flag {taken[0]} follows from --target and NEURON_LOGICAL_NC_CONFIG: leave "
            "it out"
        )
    asked = {
        f"-O{value}" if flag == "--optlevel" else flag: "" if flag == "--optlevel" else value
        for flag, value in spec.compiler_flags.items()
    }
    if not any(flag.startswith("-O") for flag in asked):
        flags["-O2"] = ""
    return flags | asked


def render(flags: Mapping[str, str]) -> str:
    """The flags as the compiler's command line has them."""
    words = {
        flag: f"{flag} {value}" if flag == "--target" else f"{flag}={value}"
        for flag, value in flags.items()
        if value
    }
    return " ".join(words.get(flag, flag) for flag in flags)


def aim(target: str) -> None:
    """On a host without a device, tell the SDK the platform; what the user has set is never
    changed.
    """
    platform, stated = PLATFORMS[target], os.environ.get(OVERRIDE)
    if stated:
        if PLATFORMS.get(stated, stated) != platform:
            raise InvalidRequest(
                f"{OVERRIDE} is {stated}, but --target is {target}: set it to {platform} or unset "
                "it"
            )
        return
    if has_device():
        family = instance_family()
        if family in PLATFORMS and PLATFORMS[family] != platform:
            raise InvalidRequest(
                f"this is a {family} machine: to compile for {target} on it, set "
                f"{OVERRIDE}={platform} first"
            )
        return
    imported = [
        name
        for name in ("torch_neuronx", "neuronx_distributed", "torch_xla")
        if name in sys.modules
    ]
    if imported:
        raise InvalidRequest(
            f"there is no Neuron device here and {imported[0]} was imported already: set "
            f"{OVERRIDE}={platform} before starting"
        )
    os.environ[OVERRIDE] = platform
    print(
        f"no Neuron device here: compiling for {target} with {OVERRIDE}={platform}, set for this "
        "process",
        file=sys.stderr,
    )


def check_routes(buckets: Sequence[Bucket]) -> None:
    """No two graphs take inputs of the same names and shapes: a call could not tell which is
    meant.
    """
    routes: dict[tuple[Any, ...], str] = {}
    for bucket in buckets:
        route = (
            type(bucket),
            bucket.rows,
            bucket.nodes,
            bucket.slots,
            bucket.picks,
            bucket.sampled,
        )
        if route in routes:
            raise InvalidRequest(
                f"graphs {routes[route]} and {bucket.name} take the same inputs: leave one out"
            )
        routes[route] = bucket.name


def _cause(error: BaseException) -> str:
    """The innermost message, which is the compiler's own."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
