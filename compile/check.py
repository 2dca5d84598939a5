"""The first test on a Neuron instance, which `outrider prove` runs in a process of its own.

It compares the device's noise with the contract, builds a few graphs whose times tell the parts of
a call apart, compares choices with those of the eager model, and takes the time of a call. It needs
no other machine and leaves its artefact in --out. Not yet run on hardware.

Noise is compared by two graphs, of the words and of the noise. Each fills a table of the size that
a target's graph fills: one row for each of 16 depths, one column for each of 151,936 tokens. All of
it is compared with the host's. Rows are chosen so that the least and the greatest noise occur: the
greatest decides texts. Words must be equal, noise may differ in the last digits. A device that
fails must not serve sampled graphs.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from compile.agreement import agreements, random_tree
from compile.build.build import build_artifact, load_whole, read_source
from compile.build.neuron_builder import NeuronBuilder
from compile.build.neuron_compiler import PLATFORMS, Toolchain, render
from compile.build.progress import BuildProgress
from compile.compile_options import CompileOptions, parse
from compile.plan.fit import usual_ranks
from compile.request import BuildCheckpoint, find_checkpoint
from compile.spec import CompileSpec, least_nodes, verify_bucket
from inference.artifact import Manifest, check_files
from inference.backends import Model
from inference.backends.eager import EagerModel
from inference.backends.neuron_loading import load_neuron
from inference.backends.neuron_sdk import (
    has_device,
    instance_family,
    load_build_units,
    reserve_cores,
    sdk_versions,
)
from inference.backends.sequence import ModelSequence
from inference.command import UNEQUAL_DEVICE, run_command, say
from inference.errors import BadArtifact, InvalidRequest, OutriderError
from inference.model.noise import from_limbs, left, noise, noise_in_limbs, right, threefry_in_limbs
from inference.sampling import SamplingParams, threefry2x32

_SMALL = ("--sequence_length", "512", "--max_tree_nodes", "16")
"""Sizes where the command line says nothing else."""
CALLS = 100
"""Calls that are timed."""
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
    found = list(agreements(model, eager, manifest))
    print(*found, sep="\n")
    taken, nodes = time_call(model, spec.vocabulary, spec.max_tree_nodes), spec.max_tree_nodes
    print(f"{taken:.2f} ms a call (median of {CALLS}), {nodes} nodes")
    if not all(agreement.is_enough for agreement in found):
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


def _eager(spec: CompileSpec, directory: Path, most: int) -> EagerModel:
    """The model that the device's choices are compared with, on the CPU."""
    return EagerModel(load_whole(spec, directory), rows=1, capacity=spec.capacity, max_nodes=most)


def time_call(model: Model, vocabulary: int, nodes: int) -> float:
    """Median milliseconds of a verification, padding and transfers included."""
    generator, seconds = np.random.default_rng(6), list[float]()
    sequence = ModelSequence(model, 0, SamplingParams(1.0, seed=7))
    sequence.extend(generator.integers(0, vocabulary, 16).tolist())
    for _ in range(CALLS):
        tree = random_tree(generator, 1, nodes, vocabulary)
        start = time.perf_counter()
        sequence.choose(tree)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * 1000


TOLERANCE = 2e-5
"""Largest allowed difference of the noise, which lies in -2.82 to 16.64."""

TOKENS = 151_936
"""Columns of the table: the ids of a large vocabulary."""

_WORD = 2**32


ROWS = (
    *((0, 0), (0, 1), (1, 0), (42, 7), (2**32, 7)),
    *((0xDEADBEEF, 2048), (123456789012345678, 511), (2**63 - 1, 131071)),
    # with the greatest noise there is, the next four values, and the four least
    *((26, 0), (15, 0), (161, 0), (140, 0), (14, 0), (81, 0), (30, 0), (25, 0)),
)
"""Seed and position of each row of the table."""


class NoiseProbe(nn.Module):
    """A graph of the words or of the noise of a whole table.

    Its weight is 0 and changes nothing: a package without any weight is not a documented case.
    """

    def __init__(self, *, words: bool) -> None:
        super().__init__()
        self.zero = nn.Parameter(torch.zeros(1), requires_grad=False)
        self.words = words

    def forward(self, seed: Tensor, position: Tensor) -> Tensor:
        """Fill the table: seed [R, 2], position [R, 1] int32 -> [R, TOKENS] int32 or float32."""
        ids = torch.arange(TOKENS, dtype=torch.int32, device=seed.device)
        keys = seed[:, None]  # [R, 1, 2]
        if not self.words:
            return noise_in_limbs(keys, position, ids) + self.zero
        word, _ = threefry_in_limbs((keys[..., 0], keys[..., 1]), (ids, position))
        return from_limbs(word) ^ self.zero.to(torch.int32)


def probe_inputs() -> dict[str, Tensor]:
    """Seeds and positions of the table's rows."""
    seeds = torch.tensor([[seed % _WORD, seed >> 32] for seed, _ in ROWS]).to(torch.int32)
    positions = torch.tensor([[position] for _, position in ROWS], dtype=torch.int32)
    return {"seed": seeds, "position": positions}


def expected() -> tuple[Tensor, Tensor]:
    """The host's words and noise of the whole table."""
    ids = torch.arange(TOKENS, dtype=torch.int32)
    inputs = probe_inputs()
    keys, position = inputs["seed"][:, None], inputs["position"]
    words, _ = threefry2x32((keys[..., 0], keys[..., 1]), (ids, position), left, right)
    return words, noise(keys, position, ids)


def check_noise(spec: CompileSpec, work: Path) -> None:
    """Compile the probe as the spec's graphs are, and run it on the device. Raises BadArtifact,
    naming a value that differs.

    work: the compiler's directory
    """
    tools = Toolchain(spec)
    words, drawn = (
        _run(tools, NoiseProbe(words=each), spec.tensor_parallel, work / str(each))
        for each in (True, False)
    )
    wrong = difference(words, drawn)
    if wrong is not None:
        raise BadArtifact(
            f"this device does not compute the noise as the contract says: {wrong}. Serve greedy "
            "graphs only (--sampling greedy), and report it"
        )


def difference(words: Tensor, drawn: Tensor) -> str | None:
    """The first wrong word, else the most wrong noise, in words; None where the device is right."""
    right, exact = expected()
    differing = (words != right).nonzero()
    if len(differing):
        row, token = differing[0].tolist()
        got, wanted = (int(each[row, token]) % _WORD for each in (words, right))
        return f"{_place(row, token)} gave bits {got:#010x}, {wanted:#010x} is right"
    error = torch.where(drawn.isfinite(), (drawn - exact).abs(), torch.inf)
    if error.max() <= TOLERANCE:
        return None
    row, token = divmod(int(error.argmax()), TOKENS)
    return f"{_place(row, token)} gave noise {drawn[row, token]}, {exact[row, token]} is right"


def _place(row: int, token: int) -> str:
    seed, position = ROWS[row]
    return f"seed {seed}, position {position}, token {token}"


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
