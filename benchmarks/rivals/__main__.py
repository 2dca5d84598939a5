"""Outrider beside other engines, on one pair of models and one machine: `outrider bench` with the
arms of other engines behind its own.

    python -m benchmarks.rivals --target_model DIR --draft_model DIR --dtype bfloat16
        --preset hybrid,suffix --transformers [--openvino_models TARGET_DIR,DRAFT_DIR]
    python -m benchmarks.rivals --target_model FILE.gguf --draft_model FILE.gguf
        --llama_servers NAME=HOST:PORT,...

All flags of `outrider bench` hold; texts are greedy and have no schema. All arms get the same ids
and compute every prompt anew. Speed-ups are over Outrider's own target-only. docs/measured.md has
results, and how servers of llama.cpp are started.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from benchmarks.harness import Flags, PairNames, run
from benchmarks.rivals import llama_server, openvino
from benchmarks.rivals.arm import Plays, rival_arm, with_cold_prompts
from benchmarks.rivals.library import Library
from inference.errors import InvalidRequest
from inference.flags.group import Metavar
from inference.flags.values import Count, Words
from inference.model.checkpoints.checkpoint import DTYPES
from outrider.client.client import Client
from outrider.measure.run import Arm
from outrider.measure.sets import Item
from outrider.measure.verbs.bench import run as run_bench
from outrider.measure.verbs.options import BenchOptions


class Options(BenchOptions, Flags):
    transformers: bool = False
    """the library transformers, with the same checkpoints"""
    openvino_models: PairNames | None = None
    """OpenVINO GenAI, with these directories of exported models"""
    llama_servers: Annotated[Words, Metavar("NAME=HOST:PORT,...")] = ()
    """servers of llama.cpp, each with a name for its arm"""
    rival_arms: Annotated[Words, Metavar("NAME,...")] = ()
    """arms of other engines (default: all)"""
    rival_threads: Count = 2
    """CPU threads of transformers and OpenVINO"""

    def items(self) -> list[Item]:
        """The prompts that no schema binds, kinds in turn."""
        return [item for item in super().items() if item.schema is None]


def load(options: Options) -> Plays:
    """Load the arms of other engines. Raises InvalidRequest where flags are missing."""
    dtype, threads, plays = options.dtype, options.rival_threads, Plays()
    if options.transformers:
        if not (options.target_model and options.draft_model and dtype):
            raise InvalidRequest(
                "--transformers needs --target_model, --draft_model and --dtype: each engine has "
                "defaults of its own"
            )
        pair = Path(options.target_model), Path(options.draft_model)
        plays |= Library(*pair, DTYPES[dtype], threads).arms()
    if options.openvino_models is not None:
        if dtype is None:
            raise InvalidRequest("--openvino_models needs --dtype")
        target, draft = options.openvino_models
        plays |= openvino.pipelines(target, draft, dtype, threads)
    for server in options.llama_servers:
        name, _, address = server.partition("=")
        plays[f"llama.cpp {name}"] = partial(llama_server.play, address)
    return {name: plays[name] for name in options.rival_arms or plays}


def beside(options: Options, client: Client, arms: Sequence[Arm]) -> list[Arm]:
    """Return our arms and those of other engines."""
    billing, tokenizer = arms[0].billing, client.tokenizer
    plays = load(options).items()
    theirs = [rival_arm(name, play, tokenizer, billing) for name, play in plays]
    return [*with_cold_prompts(arms), *theirs]


def main(options: Options) -> int:
    return run_bench(options, partial(beside, options))


if __name__ == "__main__":
    run(Options, main)
