"""Collect what an acceptance model learns from: the draft's scores at every token that the target
wrote, and which rank it took.

    python -m benchmarks.training.agreement --out DATA.npz [--prompts FILE.jsonl]
    [--target DIR --draft DIR --chat] [--texts 16] [--new 128]

The target writes a text for every prompt and temperature under the shared noise, all texts in one
batch; then the draft reads them and ranks the next token everywhere. This is what a session
observes, without its trees: ranks and scores depend on the text only. Prompts are lines of JSON
with a field "prompt" (text) and, if there is one, "kind"; without a file they are cut from the
held-out files of the embedded pair, which is the default pair. Nothing is timed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.harness import FileName, Flags, Folder, cpu_decoder, run
from benchmarks.training.corpus import read_texts
from inference.backends.eager import EagerModel
from inference.backends.sequence import ModelSequence
from inference.model.config import read_config
from inference.sampling import SamplingParams
from inference.text import Tokenizer
from inference.tree import TokenTree
from outrider.models.directories import EMBEDDED

WIDTH = 16
"""Ranks that are kept: no tree has wider nodes."""

TEMPERATURES = (0.0, 0.7, 1.0)
CHUNK = 32  # nodes of one call of the draft
PROMPT_TOKENS = 96  # of a prompt that is cut from a file
LONGEST_PROMPT = 400


class Prompt(NamedTuple):
    """Ids, and what kind of text it is: results are told apart by it."""

    ids: list[int]
    kind: str


@dataclass(frozen=True)
class Agreement:
    """One text that the target wrote, position by position. Raises ValueError unless the arrays fit
    each other.

    taken: the rank of the target's token among the draft's WIDTH likeliest, WIDTH where it is none
    of them.
    scores: as the drafter sees them: log-probabilities at temperature 0, else perturbed
    """

    kind: str
    temperature: float
    prompt: NDArray[np.int32]  # [p]
    written: NDArray[np.int32]  # [n] by the target
    ids: NDArray[np.int32]  # [n, WIDTH] the draft's likeliest tokens
    scores: NDArray[np.float32]  # [n, WIDTH]
    taken: NDArray[np.int32]  # [n]

    def __post_init__(self) -> None:
        expected = (len(self.taken), WIDTH)
        for array in (self.scores, self.ids):
            if array.shape != expected or len(self.written) != len(self.taken):
                raise ValueError(
                    f"ids and scores of {len(self.taken)} positions have shape {expected}, and as "
                    f"many tokens were written: got {array.shape} and {len(self.written)}"
                )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


_ARRAYS = ("prompt", "written", "ids", "scores", "taken")


def save(path: Path, texts: Sequence[Agreement]) -> None:
    """Write texts as one .npz file."""
    np.savez_compressed(
        path,
        **{
            f"{name}_{index}": value
            for index, text in enumerate(texts)
            for name, value in asdict(text).items()
        },
    )


def load(path: Path) -> list[Agreement]:
    """Texts that save() wrote."""
    with np.load(path) as stored:
        count = sum(name.startswith("taken_") for name in stored)
        return [
            Agreement(
                str(stored[f"kind_{i}"]),
                float(stored[f"temperature_{i}"]),
                *(stored[f"{name}_{i}"] for name in _ARRAYS),
            )
            for i in range(count)
        ]


def write_texts(
    model: EagerModel,
    prompts: Sequence[Prompt],
    params: Sequence[SamplingParams],
    new: int,
    stop_ids: frozenset[int],
) -> list[list[int]]:
    """The target's continuation of each prompt under its own params, a row each: `new` tokens,
    or fewer when a stop id ends it.
    """
    rows = [ModelSequence(model, row, sampling) for row, sampling in enumerate(params)]
    for row, prompt in zip(rows, prompts, strict=True):
        row.extend(prompt.ids[:-1])
    written = [[prompt.ids[-1]] for prompt in prompts]
    going = list(range(len(rows)))
    for _ in range(new):
        roots = [TokenTree.chain([written[index][-1]]) for index in going]
        chosen = model.choose(
            [rows[index].prepare(root) for index, root in zip(going, roots, strict=True)]
        )
        for index, root, token in zip(going, roots, chosen, strict=True):
            rows[index].commit(root, [])
            written[index].append(int(token.tokens[0]))
        going = [index for index in going if written[index][-1] not in stop_ids]
        if not going:
            break
    return [tokens[1:] for tokens in written]


def read_text(
    draft: EagerModel, prompt: Prompt, written: Sequence[int], params: SamplingParams
) -> Agreement:
    """The draft's ranking at every position of a text that the target wrote, under the same
    params.
    """
    sequence = ModelSequence(draft, 0, params)
    sequence.extend(prompt.ids[:-1])
    roots = [prompt.ids[-1], *written[:-1]]
    ids, scores, taken = [], [], []
    for start in range(0, len(roots), CHUNK):
        chain = TokenTree.chain(roots[start : start + CHUNK])
        ranked = sequence.rank(chain, range(len(chain)), WIDTH)
        sequence.commit(chain, range(1, len(chain)))
        right = ranked.ids == np.array(written[start : start + CHUNK])[:, None]
        ids.append(ranked.ids)
        scores.append(ranked.scores)
        taken.append(np.where(right.any(axis=1), right.argmax(axis=1), WIDTH))
    return Agreement(
        prompt.kind,
        params.temperature,
        np.array(prompt.ids, dtype=np.int32),
        np.array(written, dtype=np.int32),
        np.concatenate(ids).astype(np.int32),
        np.concatenate(scores).astype(np.float32),
        np.concatenate(taken).astype(np.int32),
    )


def file_prompts(path: Path, tokenizer: Tokenizer, texts: int, chat: bool) -> list[Prompt]:
    """The first prompts of a file of JSON lines that are not too long."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    prompts = [
        Prompt(tokenizer.encode(line["prompt"], chat=chat), str(line.get("kind", path.stem)))
        for line in lines
    ]
    return [prompt for prompt in prompts if len(prompt.ids) <= LONGEST_PROMPT][:texts]


def held_out_prompts(tokenizer: Tokenizer, texts: int) -> list[Prompt]:
    """Beginnings of evenly spread windows of the files that the embedded pair was not trained
    on.
    """
    listing = json.loads((EMBEDDED / "training_files.json").read_text(encoding="utf-8"))
    files = [tokenizer.encode(text) for text in read_texts(listing, "held-out") if text]
    windows = [
        ids[cut : cut + PROMPT_TOKENS]
        for ids in files
        for cut in range(0, len(ids) - PROMPT_TOKENS, 4 * PROMPT_TOKENS)
    ]
    return [Prompt(ids, "python") for ids in windows[:: max(1, len(windows) // texts)][:texts]]


def load_one(directory: Path, tokenizer: Tokenizer, *, rows: int, length: int) -> EagerModel:
    """A model on the CPU; the embedded pair in float32, others as they are stored."""
    dtype = torch.float32 if directory.is_relative_to(EMBEDDED) else None
    decoder = cpu_decoder(directory, length, tokenizer.vocabulary, dtype)
    return EagerModel(decoder, rows=rows, capacity=length + CHUNK, max_nodes=256)


class Written(NamedTuple):
    """Text that the target wrote after a prompt."""

    prompt: Prompt
    tokens: list[int]
    params: SamplingParams


def written(
    target: Path, prompts: Sequence[Prompt], tokenizer: Tokenizer, new: int, batch: int
) -> list[Written]:
    """A text for every prompt at every temperature; seeds differ from text to text."""
    asked = [one for _ in TEMPERATURES for one in prompts]
    params = [
        SamplingParams(temperature, seed=index)
        for temperature in TEMPERATURES
        for index in range(len(prompts))
    ]
    length = max(len(prompt.ids) for prompt in prompts) + new
    model = load_one(target, tokenizer, rows=batch, length=length)
    stop_ids, texts = read_config(target).stop_ids | tokenizer.end_ids, list[list[int]]()
    for start in range(0, len(asked), batch):
        part = slice(start, start + batch)
        texts += write_texts(model, asked[part], params[part], new, stop_ids)
        print(f"{len(texts)} of {len(asked)} texts written", flush=True)
    return [Written(*one) for one in zip(asked, texts, params, strict=True)]


class Options(Flags):
    out: FileName
    target: Folder = EMBEDDED / "target"
    draft: Folder = EMBEDDED / "draft"
    prompts: FileName | None = None
    """lines of JSON (default: the embedded pair's held-out files)"""
    chat: bool = False
    """put each prompt into the model's chat template"""
    texts: int = 16
    """prompts, each continued at every temperature"""
    new: int = 128
    """tokens of a text"""
    batch: int = 24
    """texts written at once"""
    threads: int = 1


def main(given: Options) -> None:
    torch.set_num_threads(given.threads)
    tokenizer = Tokenizer(given.target)
    prompts = (
        file_prompts(given.prompts, tokenizer, given.texts, given.chat)
        if given.prompts
        else held_out_prompts(tokenizer, given.texts)
    )
    said = written(given.target, prompts, tokenizer, given.new, given.batch)
    length = max(len(prompt.ids) for prompt in prompts) + given.new
    reader = load_one(given.draft, tokenizer, rows=1, length=length)
    texts = [read_text(reader, one.prompt, one.tokens, one.params) for one in said]
    save(given.out, texts)
    for temperature in TEMPERATURES:
        taken = np.concatenate([text.taken for text in texts if text.temperature == temperature])
        shares = ", ".join(f"top {best} {(taken < best).mean():.3f}" for best in (1, 2, 4, 8, 16))
        print(
            f"T {temperature}: {len(taken)} positions, the target's token in the draft's {shares}"
        )


if __name__ == "__main__":
    run(Options, main)
