"""Outrider beside other engines, on one pair of models and one machine: `outrider bench` with the
arms of other engines behind its own.

    python -m benchmarks.rivals --target_model DIR --draft_model DIR --presets hybrid,suffix
        [--engines transformers,openvino --openvino_models TARGET_DIR,DRAFT_DIR]
    python -m benchmarks.rivals --target_model FILE.gguf --draft_model FILE.gguf --engines llama.cpp
        --llama_server FILE

All flags of `outrider bench` hold; texts are greedy and have no schema. All arms get the same ids
and compute every prompt anew. Speed-ups are over Outrider's own target-only. docs/measured.md has
results.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

from benchmarks.harness import Flags, PairNames, run
from benchmarks.rivals import library, openvino
from benchmarks.rivals import llama_server as llama
from benchmarks.rivals.arm import Plays, rival_arm, with_cold_prompts
from inference.errors import InvalidRequest
from inference.flags.group import Shown
from inference.flags.values import Count, File, Words, among
from inference.model.checkpoint import DTYPES
from outrider.client.client import Client
from outrider.measure.arms import Arm
from outrider.measure.bench import run as run_bench
from outrider.measure.options import BenchOptions
from outrider.measure.sets import Item

NAMES = library.PLAIN, openvino.PLAIN, llama.PLAIN


class Options(BenchOptions, Flags):
    engines: Annotated[Words, among(NAMES), Shown("NAME,...")] = (library.PLAIN,)
    """other engines"""
    rival_arms: Annotated[Words, Shown("NAME,...")] = ()
    """their arms (default: all)"""
    rival_threads: Count = 2
    """CPU threads of other engines"""
    llama_server: File | None = None
    """llama.cpp's server"""
    openvino_models: PairNames | None = None
    """directories of the exported models"""

    def items(self) -> list[Item]:
        """The prompts that no schema binds, kinds in turn."""
        return [item for item in super().items() if item.schema is None]

    def pair(self) -> tuple[str, str, str]:
        """Target, draft and precision. Raises InvalidRequest unless all are stated."""
        if not (self.target_model and self.draft_model and self.dtype):
            raise InvalidRequest(
                "--target_model, --draft_model and --dtype are needed: each engine has its own "
                "default"
            )
        return self.target_model, self.draft_model, self.dtype


Engine = Callable[[Options, Sequence[str]], AbstractContextManager[Plays]]
"""Loads these arms of an engine."""


@contextmanager
def _transformers(options: Options, names: Sequence[str]) -> Iterator[Plays]:
    target, draft, dtype = options.pair()
    pair = library.Library(Path(target), Path(draft), DTYPES[dtype], options.rival_threads)
    yield {name: play for name, play in pair.arms().items() if name in names}


@contextmanager
def _openvino(options: Options, names: Sequence[str]) -> Iterator[Plays]:
    if options.openvino_models is None or options.dtype is None:
        raise InvalidRequest("openvino needs --openvino_models and --dtype")
    target, draft = options.openvino_models
    yield openvino.pipelines(target, draft, options.dtype, options.rival_threads, names)


@contextmanager
def _llama(options: Options, names: Sequence[str]) -> Iterator[Plays]:
    if not (options.llama_server and options.target_model and options.draft_model):
        raise InvalidRequest("llama.cpp needs --llama_server, --target_model and --draft_model")
    pair, binary = (options.target_model, options.draft_model), Path(options.llama_server)
    with llama.llama_servers(binary, *pair, options.rival_threads, names) as plays:
        yield plays


ENGINES: dict[str, tuple[Engine, Sequence[str]]] = {
    library.PLAIN: (_transformers, library.ARMS),
    openvino.PLAIN: (_openvino, openvino.ARMS),
    llama.PLAIN: (_llama, llama.ARMS),
}
"""What loads each engine, and its arms, the plain one first."""


@contextmanager
def beside(options: Options, client: Client, arms: Sequence[Arm]) -> Iterator[list[Arm]]:
    """Load the engines. Yields our arms and theirs."""
    plays: Plays = {}
    with ExitStack() as stack:
        for engine in options.engines:
            load, names = ENGINES[engine]
            wanted = [name for name in names if name in (options.rival_arms or names)]
            plays |= stack.enter_context(load(options, wanted))
        billing, tokenizer = arms[0].billing, client.tokenizer
        theirs = [rival_arm(name, play, tokenizer, billing) for name, play in plays.items()]
        yield [*with_cold_prompts(arms), *theirs]


def main(options: Options) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # servers end with their contexts
    return run_bench(options, partial(beside, options))


if __name__ == "__main__":
    run(Options, main)
