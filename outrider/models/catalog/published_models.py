"""Models that may draft for a target: published ones from a table, and those on this machine."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from grpc_comm.translate import Description
from inference.errors import InvalidRequest, Mismatch
from inference.files.json_file import Count, Positive, Record, Text, read_json, read_record
from inference.model.checkpoints.hub import find_model
from inference.text.tokenizer import Tokenizer
from inference.text.tokenizer_settings import TokenizerIdentity
from outrider.client.connecting import tokenizer_identity
from outrider.models.catalog.models_here import ModelHere
from outrider.models.machine import memory_size

MAX_DRAFT = 3500e6
"""Maximum parameters of a published draft."""


@dataclass(frozen=True)
class PublishedModel(Record):
    """A row of families.json: a model on the hub."""

    family: Text  # contained in the targets' names, in lower case
    repository: Text
    millions: Positive  # of parameters
    precision: Text
    megabytes: Positive  # to download; in some rows computed from the parameters
    licence: Text
    context: Count  # tokens
    file: Text = ""  # a GGUF file of the repository; empty for a checkpoint in safetensors
    tokenizer: Text = ""  # repository of a GGUF file's tokenizer

    @property
    def name(self) -> str:
        return self.file or self.repository

    @property
    def size(self) -> int:
        """Bytes to download."""
        return int(self.megabytes * 1e6)

    @property
    def parameters(self) -> int:
        return int(self.millions * 1e6)

    @property
    def gguf(self) -> bool:
        """Whether llama.cpp computes the model; else torch does."""
        return bool(self.file)

    def __str__(self) -> str:
        return (
            f"{self.repository} {self.file}: {self.millions:g} M parameters, {self.precision}, "
            f"about {self.megabytes:g} MB, licence {self.licence}, context {self.context}, by "
            f"{'llama.cpp' if self.gguf else 'torch'}"
        )


def judged(model: ModelHere, target: Description) -> ModelHere:
    """Return a local model, whose `refusal` also states why it cannot draft for the target."""
    itself = target.model in (model.name, model.directory.name)
    larger = itself or model.parameters > stated_parameters(target.model) / 2
    reasons = {
        model.refusal: bool(model.refusal),
        "its tokenizer is not the target's": not model.drafts_for(tokenizer_identity(target)),
        "it has more than half of the target's parameters": larger,
        "it takes more than half of this machine's memory": 2 * model.size > memory_size() > 0,
    }
    return model._replace(refusal=next((why for why, holds in reasons.items() if holds), ""))


def stated_parameters(name: str) -> float:
    """Return the parameters that a model's name states, such as 7B; infinite if it states none."""
    match = re.search(r"(?<![\d.])(\d+(?:\.\d+)?)([bm])(?![a-z0-9])", Path(name).name.lower())
    return float(match[1]) * {"b": 1e9, "m": 1e6}[match[2]] if match else math.inf


@cache
def published_models() -> tuple[PublishedModel, ...]:
    """Read the rows of families.json."""
    table = read_json(Path(__file__).parent / "families.json", InvalidRequest)
    return read_record(table, tuple[PublishedModel, ...])


def published_for(target: str, local: Sequence[ModelHere]) -> list[PublishedModel]:
    """Return the published drafts that are not on this machine and have at most half of the
    target's parameters, the smallest download first.
    """
    target_name, limit = Path(target).name.lower(), min(stated_parameters(target) / 2, MAX_DRAFT)
    names = {name for model in local if model.family for name in (model.name, model.directory.name)}
    missing = [
        model
        for model in published_models()
        if model.family in target_name and model.parameters <= limit and model.name not in names
    ]
    return sorted(missing, key=lambda model: (model.megabytes, -len(model.family)))


def fetch(model: PublishedModel, tokenizer: TokenizerIdentity | None = None) -> Path:
    """Download a model. Returns its directory, or the path of its GGUF file, next to which its
    checkpoint's tokenizer is stored.

    tokenizer: the target's, which the model's has to match; None to skip the check

    Raises Mismatch if the tokenizers differ, before any weights are downloaded.
    """
    source = find_model(model.tokenizer or model.repository, weights=False)
    if tokenizer is not None and Tokenizer(source).identity.disagreement(tokenizer):
        raise Mismatch(f"{model.repository} is not downloaded: its tokenizer is not the target's")
    place = find_model(model.repository, file=model.file)
    for path in source.glob("tokenizer*.json") if model.gguf else ():
        shutil.copy(path, place)
    return place / model.file
