"""The first test on a Neuron instance, which `outrider prove` runs in a separate process.

It compares the device's noise with the sampling contract, builds a few graphs whose times reveal
the parts of a call, and compares choices with those of the eager model. It needs no other machine
and leaves its artefact in --out.

A graph computes noise for as many rows and tokens as a target's graph, including the least and the
greatest possible values; the greatest decide which tokens are chosen. Wrong random words show up as
wrong noise. A device that fails must not serve sampled graphs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from compile.agreement import agreements
from compile.build.build import build_artifact, load_whole, read_source
from compile.compile_options import CompileOptions, parse
from compile.neuron.builder import NeuronBuilder
from compile.neuron.compiler import PLATFORMS, Toolchain, render
from compile.plan.fit import check_fits
from compile.request import BuildCheckpoint, find_checkpoint, make_request
from compile.spec import CompileSpec, least_nodes, verify_bucket
from inference.backends.eager import EagerModel
from inference.backends.neuron.loading import load_neuron
from inference.backends.neuron.sdk import (
    has_device,
    instance_family,
    load_build_units,
    reserve_cores,
    sdk_versions,
)
from inference.command import UNEQUAL_DEVICE, run_command, say
from inference.errors import BadArtifact, InvalidRequest, OutriderError
from inference.files.artifact import Manifest, check_files
from inference.model.choice.arithmetic import noise, noise_in_limbs

_SMALL = ("--sequence_length", "512", "--max_tree_nodes", "16")
"""Default sizes, as flags."""
ROWS_TIMED = 4
"""Number of rows of the largest graph; the others have one."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the test with the flags of `outrider compile`. Returns UNEQUAL_DEVICE if the device's
    results differ, and another code if it could not be tested.
    """
    options = parse([*_SMALL, *(sys.argv[1:] if arguments is None else arguments)])
    return run_command(lambda: _check(options), debug=options.debug)


def _check(options: CompileOptions) -> int:
    if options.device not in PLATFORMS:
        raise InvalidRequest("--target is needed: trn1 or inf2, which this test is for")
    if not has_device():
        raise InvalidRequest(
            "no Neuron device here: run this on the instance; to compile without a device use "
            "outrider compile"
        )
    versions = ", ".join(f"{name} {number}" for name, number in sdk_versions().items())
    print(f"instance {instance_family() or 'unknown'}; {versions}")
    checkpoint, out = find_checkpoint(options), Path(options.out or "")
    spec = _spec(options, checkpoint)
    check_fits(checkpoint.config, spec)
    reserve_cores(spec.tensor_parallel)
    try:
        check_noise(spec, out / "noise")  # if it is wrong, no model needs to be compiled
    except BadArtifact as error:
        print(f"check: FAILED: {error}")
        return UNEQUAL_DEVICE
    print(f"noise: all {len(ROWS) * TOKENS} values as on the host")
    manifest = _build(spec, checkpoint.directory, out)
    check_files(out, manifest)
    model = load_neuron(out, manifest, say)
    eager = _eager(spec, checkpoint.directory, model.max_nodes)
    agreeing = list(agreements(model, eager, manifest))
    print(*agreeing, sep="\n")
    if not all(agreement.is_enough() for agreement in agreeing):
        print("check: FAILED: the device does not choose as the eager model does")
        return UNEQUAL_DEVICE
    print("check: passed")
    return 0


def _build(spec: CompileSpec, directory: Path, out: Path) -> Manifest:
    """Build all graphs; if that fails, only the first, which can run every call."""
    try:
        return _built(spec, directory, out)
    except OutriderError as error:
        print(f"not built with all graphs: {error}")
        return _built(replace(spec, buckets=spec.buckets[:1]), directory, out)


def _built(spec: CompileSpec, directory: Path, out: Path) -> Manifest:
    start = time.perf_counter()
    manifest = build_artifact(
        spec,
        read_source(directory),
        NeuronBuilder(spec, directory),
        out,
        command="outrider prove",
        say=say,
    )
    names = ", ".join(bucket.name for bucket in spec.buckets)
    print(f"built {names} in {time.perf_counter() - start:.0f} s, artefact in {out}")
    return manifest


def _spec(options: CompileOptions, checkpoint: BuildCheckpoint) -> CompileSpec:
    """Return the spec of the test: sampled graphs, the first of which can run every call, including
    prompts, and others that only differ from it in rows or nodes.
    """
    least = least_nodes(options.precision)
    nodes = max(options.max_tree_nodes, least)
    length = min(options.sequence_length or 512, checkpoint.config.max_positions)
    sizes = {"batch": ROWS_TIMED, "sequence_length": length, "max_tree_nodes": nodes}
    spec = make_request(options.replace(**sizes), checkpoint).spec
    shapes = [(ROWS_TIMED, nodes), *((1, max(size, least)) for size in (nodes, 1, 4 * nodes))]
    buckets = (
        verify_bucket(rows, size, spec.capacity, spec.capacity, sampled=True)
        for rows, size in dict.fromkeys(shapes)
    )
    return replace(spec, buckets=tuple(buckets))


def _eager(spec: CompileSpec, directory: Path, nodes: int) -> EagerModel:
    return EagerModel(load_whole(spec, directory), rows=1, capacity=spec.capacity, max_nodes=nodes)


TOLERANCE = 2e-5
"""Maximum allowed difference of the noise, which is between -2.82 and 16.64."""

TOKENS = 151_936
"""Number of columns of the table: the ids of a large vocabulary."""

ROWS = (
    *((0, 0), (0, 1), (1, 0), (42, 7), (2**32, 7)),
    *((0xDEADBEEF, 2048), (123456789012345678, 511), (2**63 - 1, 131071)),
    # with the greatest possible noise, the next four values, and the four least
    *((26, 0), (15, 0), (161, 0), (140, 0), (14, 0), (81, 0), (30, 0), (25, 0)),
)
"""Seed and position of each row of the table."""


class NoiseProbe(nn.Module):
    """A graph that computes the noise of the whole table.

    Its weight is 0 and has no effect: packages without any weight are not documented.
    """

    def __init__(self) -> None:
        super().__init__()
        self.zero = nn.Parameter(torch.zeros(1), requires_grad=False)

    def forward(self, seed: Tensor, position: Tensor) -> Tensor:
        """Compute the table: seed [R, 2], position [R, 1] int32 -> [R, TOKENS] float32."""
        ids = torch.arange(TOKENS, dtype=torch.int32, device=seed.device)
        return noise_in_limbs(seed[:, None], position, ids) + self.zero


def probe_inputs() -> dict[str, Tensor]:
    """Return seeds and positions of the table's rows."""
    seeds = torch.tensor([[seed % 2**32, seed >> 32] for seed, _ in ROWS]).to(torch.int32)
    positions = torch.tensor([[position] for _, position in ROWS], dtype=torch.int32)
    return {"seed": seeds, "position": positions}


def host_noise() -> Tensor:  # [R, TOKENS]
    """Compute the whole table on the host."""
    ids, inputs = torch.arange(TOKENS, dtype=torch.int32), probe_inputs()
    return noise(inputs["seed"][:, None], inputs["position"], ids)


def check_noise(spec: CompileSpec, work: Path) -> None:
    """Compile the probe with the settings of the spec's graphs, and run it on the device. Raises
    BadArtifact with the value that differs most.

    work: the compiler's directory
    """
    device, host = _run(Toolchain(spec), NoiseProbe(), spec.tensor_parallel, work), host_noise()
    error = torch.where(device.isfinite(), (device - host).abs(), torch.inf)
    if error.max() <= TOLERANCE:
        return
    row, token = divmod(int(error.argmax()), TOKENS)
    seed, position = ROWS[row]
    raise BadArtifact(
        "this device does not compute the noise as the contract says: seed "
        f"{seed}, position {position}, token {token} gave noise {device[row, token]}, "
        f"{host[row, token]} is right. Serve greedy graphs only (--sampling greedy), and report it"
    )


@torch.no_grad()
def _run(tools: Toolchain, probe: NoiseProbe, ranks: int, work: Path) -> Tensor:
    inputs, sdk = probe_inputs(), tools.sdk
    units = load_build_units()
    with sdk.parallel_state(
        world_size=ranks, tensor_model_parallel_size=ranks, lnc_size=tools.logical
    ):
        trace = units.trace(model=probe, kwargs=inputs)
        compiled = units.compile(
            hlo_module=trace.hlo,
            metaneff=trace.metaneff,
            compiler_workdir=str(work),
            compiler_args=render(tools.flags),
            key="noise",
        )
        model: Any = sdk.nxd_model(world_size=ranks)
        model.add(key="noise", trace_artifacts=trace, compilation_artifacts=compiled)
    model.set_weights([{"zero": torch.zeros(1)} for _ in range(ranks)])
    model.to_neuron()
    answer: Tensor = model(**inputs, model_name="noise")
    return answer


if __name__ == "__main__":
    sys.exit(main())
