"""Texts that a target generates by itself, kept in a file, and the models of studies on them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import write_json
from benchmarks.regret.stage import SEQUENCE_LENGTH, serve
from benchmarks.regret.texts import PROMPTS
from inference.backends import Model
from inference.command import say
from inference.engine.engine import Engine
from inference.engine.sessions.local_session import LocalSession
from inference.loop.decode import decode
from inference.order import Decode
from inference.sampling import SamplingParams
from inference.text.tokenizer import Tokenizer
from outrider.draft_methods.model import find
from outrider.measure.sets import read_set
from outrider.models.found_model import Capacity, FoundModel
from outrider.models.loading import PREFILL_NODES
from outrider.options.groups import Quantization
from outrider.options.roles import DraftRole

MAX_RANKED = 3072
"""Slots of a row for candidates."""


class Prompt(NamedTuple):
    """A prompt, and the kind of text that it asks for."""

    kind: str
    ids: tuple[int, ...]


class Text(NamedTuple):
    """A prompt, its sampling, and what the target generates after it."""

    prompt: tuple[int, ...]
    params: SamplingParams
    tokens: tuple[int, ...]
    kind: str = "python"


def read_prompts(tokenizer: Tokenizer, file: Path | None, each: int) -> list[Prompt]:
    """Return so many prompts of each kind: first turns of chats in a file as `outrider bench` reads
    it, or pieces of Python.
    """
    if file is None:
        return [Prompt("python", tuple(tokenizer.encode(text))) for text in PROMPTS[:each]]
    return [
        Prompt(item.kind, tuple(tokenizer.encode(item.turns[0], chat=True)))
        for item in read_set(file, each)
    ]


def load_model(
    name: str, rows: int, quantization: Quantization | None = None
) -> tuple[FoundModel, Model]:
    """Load a checkpoint or GGUF file on the CPU."""
    options = DraftRole(draft_model=name, device="cpu", draft_quantization=quantization)
    model = find(options, None).settled(options).model
    assert model is not None, "a checkpoint or file has a model"
    return model, model.load(options, Capacity(rows, SEQUENCE_LENGTH, MAX_RANKED, PREFILL_NODES))


def generate(
    engine: Engine,
    prompt: Sequence[int],
    params: SamplingParams,
    tokens: int,
    stop_ids: frozenset[int] = frozenset(),
) -> tuple[int, ...]:
    """Return the target's own text after a prompt, of at most so many tokens."""
    with closing(LocalSession(engine)) as session:
        steps = decode(prompt, params, session, Decode(len(prompt) + tokens, stop_ids))
        return tuple(int(token) for step in steps for token in step.tokens)


def own_texts(
    target: str, prompts: Sequence[Prompt], temperature: float, tokens: int, file: Path
) -> list[Text]:
    """Return the target's texts after the prompts, the i-th with seed i. Those that the file lacks
    are generated, and each is stored at once.
    """
    stored: dict[str, list[int]] = json.loads(file.read_text()) if file.is_file() else {}
    params = [SamplingParams(temperature, seed=at).on_the_wire() for at in range(len(prompts))]
    drawn = [f" {temperature} {at}" if temperature else "" for at in range(len(prompts))]
    names = [
        sha256(f"{tokens} {prompt.ids}{by}".encode()).hexdigest()[:16]
        for prompt, by in zip(prompts, drawn, strict=True)
    ]
    missing = [at for at, name in enumerate(names) if name not in stored]
    if missing:
        found, model = load_model(target, 1)
        engine = serve(model, found.tokenizer.vocabulary)
    for count, at in enumerate(missing, start=1):
        text = generate(engine, prompts[at].ids, params[at], tokens, found.stop_ids)
        stored[names[at]] = list(text)
        write_json(file, stored)
        say(f"{count} of {len(missing)} texts generated: {len(text)} tokens")
    return [
        Text(prompt.ids, param, tuple(stored[name]), prompt.kind)
        for prompt, param, name in zip(prompts, params, names, strict=True)
    ]
