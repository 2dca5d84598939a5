"""First test on a Neuron instance: the noise on the device, then one graph, its choices and its
time.

Choices are compared with those of the eager model.

    python -m compile.smoke --model DIR_OR_NAME --target trn1 --tensor_parallel 2

Run it on the instance; it needs no other machine and leaves its artefact in --out. Not yet run on
hardware.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from compile import probe
from compile.build.build import build_artifact, read_source
from compile.build.neuron_builder import NeuronBuilder
from compile.build.neuron_compiler import PLATFORMS, aim, compiler_flags, render
from compile.build.progress import LineProgress
from compile.spec import DTYPES, CompileSpec, least_nodes, verify_bucket
from inference.accept import accept_match
from inference.artifact import check_files
from inference.backends import Model
from inference.backends.eager import EagerModel
from inference.backends.neuron_loading import load_neuron
from inference.backends.neuron_sdk import (
    has_device,
    instance_family,
    load_sdk,
    logical_cores,
    reserve_cores,
    sdk_versions,
)
from inference.backends.sequence import ModelSequence
from inference.errors import InvalidRequest, OutriderError
from inference.model import checkpoint as checkpoints
from inference.model.decoder import Decoder
from inference.model.float8 import in_float8, states_of
from inference.model.hub import find_model
from inference.sampling import SamplingParams
from inference.tree import TokenTree

_ENOUGH = 0.97
"""The share of equal choices below which the device is called wrong. In bfloat16 about 1 in 100 is
a near-tie that rounding decides.
"""


@dataclass(frozen=True)
class Agreement:
    """How many choices of the device equal those of the eager model, after the same committed
    tokens.
    """

    equal: int
    total: int
    first: str

    def __str__(self) -> str:
        return (
            f"{self.equal} of {self.total} choices "
            f"equal{f', first difference: {self.first}' if self.first else ''}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    try:
        return _smoke(options)
    except OutriderError as error:
        print(f"smoke: {error}", file=sys.stderr)
        return 1


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m compile.smoke", description="first contact with a Neuron instance"
    )
    parser.add_argument(
        "--model", required=True, help="model directory or hub name", metavar="DIR_OR_NAME"
    )
    parser.add_argument("--target", required=True, choices=tuple(PLATFORMS))
    parser.add_argument(
        "--tensor_parallel",
        "--tensor-parallel",
        type=int,
        default=2,
        help="cores (default: %(default)s)",
    )
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="default: %(default)s")
    parser.add_argument(
        "--nodes", type=int, default=16, help="nodes of the tree (default: %(default)s)"
    )
    parser.add_argument(
        "--sequence_length", "--sequence-length", type=int, default=512, help="default: %(default)s"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=4,
        help="trees compared at each temperature (default: %(default)s)",
    )
    parser.add_argument("--steps", type=int, default=100, help="calls timed (default: %(default)s)")
    parser.add_argument(
        "--out", help="directory of the artefact (default: a new one)", metavar="DIR"
    )
    return parser.parse_args(arguments)


def _smoke(options: argparse.Namespace) -> int:
    if not has_device():
        raise InvalidRequest(
            "no Neuron device here: run this on the instance; to compile without a device use "
            "outrider compile"
        )
    print(
        f"instance {instance_family() or 'unknown'}; "
        + ", ".join(f"{name} {number}" for name, number in sdk_versions().items())
    )
    directory = find_model(options.model)
    source = read_source(directory)
    spec = _spec(options, directory)
    out = Path(options.out or tempfile.mkdtemp(prefix="outrider-smoke-"))
    _check_noise(spec, out)
    start = time.perf_counter()
    manifest = build_artifact(
        spec,
        source,
        NeuronBuilder(spec, directory, spec.vocabulary),
        out,
        command="python -m compile.smoke",
        progress=LineProgress(_say),
    )
    print(f"built {spec.buckets[0].name} in {time.perf_counter() - start:.0f} s, artefact in {out}")
    check_files(out, manifest)
    model = load_neuron(out, manifest, _say)
    whole = _whole(spec, directory)
    eager = EagerModel(whole, rows=1, capacity=spec.capacity, max_nodes=model.max_nodes)
    found = [
        compare(model, eager, spec.vocabulary, options, params)
        for params in (SamplingParams(), SamplingParams(1.0, seed=7))
    ]
    for params, agreement in zip(("greedy", "temperature 1"), found, strict=True):
        print(f"{params}: {agreement}")
    taken = time_call(model, spec.vocabulary, options.nodes, options.steps)
    print(f"{taken:.2f} ms a call (median of {options.steps}), {options.nodes} nodes")
    enough = all(agreement.equal >= _ENOUGH * agreement.total for agreement in found)
    print(
        "smoke: passed"
        if enough
        else "smoke: FAILED, the device does not choose as the eager model does"
    )
    return 0 if enough else 1


def _spec(options: argparse.Namespace, directory: Path) -> CompileSpec:
    """The spec of the test: one row and one sampled graph, which prompts go through as well."""
    from inference.text import Tokenizer

    nodes = max(options.nodes, least_nodes(options.dtype))
    capacity = options.sequence_length + nodes
    return CompileSpec(
        model=options.model,
        target=options.target,
        vocabulary=Tokenizer(directory).vocabulary,
        buckets=(verify_bucket(1, nodes, capacity, capacity, sampled=True),),
        rows=1,
        sequence_length=options.sequence_length,
        max_tree_nodes=nodes,
        dtype=options.dtype,
        tensor_parallel=options.tensor_parallel,
    )


def _whole(spec: CompileSpec, directory: Path) -> Decoder:
    """The model that the device's choices are compared with, on the CPU."""
    decoder = checkpoints.load_decoder(
        directory,
        positions=spec.sequence_length,
        vocabulary=spec.vocabulary,
        dtype=states_of(spec.dtype),
        device=torch.device("cpu"),
    )
    return in_float8(decoder) if spec.dtype == "fp8" else decoder


def _check_noise(spec: CompileSpec, out: Path) -> None:
    """Check the noise on the device. This comes first: where it is wrong, no model need be
    compiled.
    """
    aim(spec.target)
    reserve_cores(spec.tensor_parallel)
    logical = logical_cores(spec.target)
    probe.check_noise(
        load_sdk(),
        spec.tensor_parallel,
        logical,
        render(compiler_flags(spec, logical)),
        str(out / "noise"),
    )
    print(f"noise: all {len(probe.ROWS) * probe.TOKENS} values as on the host")


def compare(
    model: Model, eager: Model, vocabulary: int, options: argparse.Namespace, params: SamplingParams
) -> Agreement:
    """Compare choices for random trees on a growing text. The eager model's verdicts decide what
    both commit.
    """
    generator = np.random.default_rng(5)
    prompt = generator.integers(0, vocabulary, options.sequence_length // 2).tolist()
    sequences = [ModelSequence(each, 0, params) for each in (model, eager)]
    for sequence in sequences:
        sequence.extend(prompt)
    root, equal, total, first = int(generator.integers(vocabulary)), 0, 0, ""
    for number in range(options.rounds):
        tree = random_tree(generator, root, options.nodes, vocabulary)
        ours, theirs = (sequence.choose(tree) for sequence in sequences)
        differing = np.flatnonzero(ours != theirs)
        equal, total = equal + len(tree) - len(differing), total + len(tree)
        if differing.size and not first:
            node = int(differing[0])
            first = f"round {number}, node {node}: token {ours[node]} for {theirs[node]}"
        verdict = accept_match(tree, theirs)
        for sequence in sequences:
            sequence.commit(tree, verdict.path)
        root = verdict.next_token
    return Agreement(equal, total, first)


def random_tree(
    generator: np.random.Generator, root: int, nodes: int, vocabulary: int
) -> TokenTree:
    """A tree of distinct tokens and random shape, at most 8 deep."""
    tokens = [
        root,
        *(int(token) for token in generator.choice(vocabulary, nodes - 1, replace=False)),
    ]
    parents, depths = [-1], [0]
    for _ in range(nodes - 1):
        parent = int(generator.choice([index for index, depth in enumerate(depths) if depth < 8]))
        parents.append(parent)
        depths.append(depths[parent] + 1)
    return TokenTree(np.array(tokens, dtype=np.int32), np.array(parents, dtype=np.int32))


def time_call(model: Model, vocabulary: int, nodes: int, steps: int) -> float:
    """Median milliseconds of a verification, padding and transfers included."""
    generator, seconds = np.random.default_rng(6), []
    sequence = ModelSequence(model, 0, SamplingParams(1.0, seed=7))
    sequence.extend(generator.integers(0, vocabulary, 16).tolist())
    for _ in range(steps):
        tree = random_tree(generator, 1, nodes, vocabulary)
        start = time.perf_counter()
        sequence.choose(tree)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * 1000


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
