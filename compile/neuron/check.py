"""The first test on a Neuron instance, which `outrider prove` runs in a process of its own.

It compares the device's noise with the contract, builds a few graphs whose times tell the parts of
a call apart, and compares choices with those of the eager model. It needs no other machine and
leaves its artefact in --out.

A graph makes noise for as many rows and tokens as a target's graph does, with the least and the
greatest noise that occurs: the greatest decides texts. Wrong random words are wrong noise, too. A
device that fails must not serve sampled graphs.
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
from compile.build.progress import BuildProgress
from compile.compile_options import CompileOptions, parse
from compile.neuron.builder import NeuronBuilder
from compile.neuron.compiler import PLATFORMS, Toolchain, render
from compile.plan.fit import usual_ranks
from compile.request import BuildCheckpoint, find_checkpoint
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
from inference.model.choice.noise import noise, noise_in_limbs

_SMALL = ("--sequence_length", "512", "--max_tree_nodes", "16")
"""Sizes where the command line says nothing else."""
ROWS_TIMED = 4
"""Rows of the largest graph; the others have one."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the test with the flags of `outrider compile`. Returns UNEQUAL_DEVICE where the device
    computes something else, and another code where it could not be tested.
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
    reserve_cores(spec.tensor_parallel)
    try:
        check_noise(spec, out / "noise")  # where it is wrong, no model need be compiled
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
    """Build the graphs, or the one that serves everything where the others cannot be built."""
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
        progress=BuildProgress(say),
    )
    names = ", ".join(bucket.name for bucket in spec.buckets)
    print(f"built {names} in {time.perf_counter() - start:.0f} s, artefact in {out}")
    return manifest


def _spec(options: CompileOptions, checkpoint: BuildCheckpoint) -> CompileSpec:
    """The spec of the test: sampled graphs, the first of which serves every row and prompts as
    well, and others that differ from it in rows or nodes alone.
    """
    nodes = max(options.max_tree_nodes, least_nodes(options.precision))
    length = min(options.sequence_length or 512, checkpoint.config.max_positions)
    capacity = length + nodes
    sizes = [(ROWS_TIMED, nodes), *((1, most) for most in (nodes, 1, 4 * nodes))]
    sizes = [(rows, max(most, least_nodes(options.precision))) for rows, most in sizes]
    return CompileSpec(
        model=checkpoint.name,
        target=options.device,
        vocabulary=checkpoint.vocabulary,
        buckets=tuple(
            verify_bucket(rows, most, capacity, capacity, sampled=True)
            for rows, most in dict.fromkeys(sizes)
        ),
        rows=ROWS_TIMED,
        sequence_length=length,
        max_tree_nodes=nodes,
        dtype=options.precision,
        tensor_parallel=options.tensor_parallel or usual_ranks([checkpoint.config], options.device),
        compiler_flags=options.compiler_flags,
    )


def _eager(spec: CompileSpec, directory: Path, nodes: int) -> EagerModel:
    """The model that the device's choices are compared with, on the CPU."""
    return EagerModel(load_whole(spec, directory), rows=1, capacity=spec.capacity, max_nodes=nodes)


TOLERANCE = 2e-5
"""Largest allowed difference of the noise, which lies in -2.82 to 16.64."""

TOKENS = 151_936
"""Columns of the table: the ids of a large vocabulary."""

ROWS = (
    *((0, 0), (0, 1), (1, 0), (42, 7), (2**32, 7)),
    *((0xDEADBEEF, 2048), (123456789012345678, 511), (2**63 - 1, 131071)),
    # with the greatest noise there is, the next four values, and the four least
    *((26, 0), (15, 0), (161, 0), (140, 0), (14, 0), (81, 0), (30, 0), (25, 0)),
)
"""Seed and position of each row of the table."""


class NoiseProbe(nn.Module):
    """A graph of the noise of the whole table.

    Its weight is 0 and changes nothing: a package without any weight is not a documented case.
    """

    def __init__(self) -> None:
        super().__init__()
        self.zero = nn.Parameter(torch.zeros(1), requires_grad=False)

    def forward(self, seed: Tensor, position: Tensor) -> Tensor:
        """Fill the table: seed [R, 2], position [R, 1] int32 -> [R, TOKENS] float32."""
        ids = torch.arange(TOKENS, dtype=torch.int32, device=seed.device)
        return noise_in_limbs(seed[:, None], position, ids) + self.zero


def probe_inputs() -> dict[str, Tensor]:
    """Seeds and positions of the table's rows."""
    seeds = torch.tensor([[seed % 2**32, seed >> 32] for seed, _ in ROWS]).to(torch.int32)
    positions = torch.tensor([[position] for _, position in ROWS], dtype=torch.int32)
    return {"seed": seeds, "position": positions}


def host_noise() -> Tensor:  # [R, TOKENS]
    """The host's noise of the whole table."""
    ids, inputs = torch.arange(TOKENS, dtype=torch.int32), probe_inputs()
    return noise(inputs["seed"][:, None], inputs["position"], ids)


def check_noise(spec: CompileSpec, work: Path) -> None:
    """Compile the probe as the spec's graphs are, and run it on the device. Raises BadArtifact,
    naming the value that differs most.

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
    """Trace, compile and run one probe."""
    inputs, sdk = probe_inputs(), tools.sdk
    units = load_build_units()
    with sdk.parallel_state(
        world_size=ranks, tensor_model_parallel_size=ranks, lnc_size=tools.logical
    ):
        trace = units.trace(model=probe, kwargs=inputs)
        made = units.compile(
            hlo_module=trace.hlo,
            metaneff=trace.metaneff,
            compiler_workdir=str(work),
            compiler_args=render(tools.flags),
            key="noise",
        )
        model: Any = sdk.nxd_model(world_size=ranks)
        model.add(key="noise", trace_artifacts=trace, compilation_artifacts=made)
    model.set_weights([{"zero": torch.zeros(1)} for _ in range(ranks)])
    model.to_neuron()
    answer: Tensor = model(**inputs, model_name="noise")
    return answer


if __name__ == "__main__":
    sys.exit(main())
