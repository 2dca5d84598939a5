"""Drafts that may fit a target: models on this machine, and published ones of its family."""

from __future__ import annotations

import math
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grpc_comm.translate import Description
from inference.command import say
from inference.errors import InvalidRequest, Mismatch
from inference.extras import is_installed
from inference.file_model import Count, Positive, Record, Text, read_record
from inference.json_file import read_json
from inference.model.hub import find_model
from inference.text import Tokenizer
from outrider.models.machine import memory_size
from outrider.models.models_here import ModelHere


@dataclass(frozen=True)
class PublishedDraft(Record):
    """A row of families.json: a draft on the hub. Its tokenizer is compared when it is fetched."""

    family: Text  # targets have this in their names, in lower case
    repository: Text
    millions: Positive  # of parameters
    precision: Text
    megabytes: Positive  # to fetch; some are computed from the parameters
    licence: Text
    context: Count  # tokens
    file: Text = ""  # a GGUF file of the repository; empty for a checkpoint in safetensors
    tokenizer: Text = ""  # repository of a GGUF file's tokenizer

    def __str__(self) -> str:
        return (
            f"{self.repository} {self.file}: {self.millions:g} M parameters, {self.precision}, "
            f"about {self.megabytes:g} MB, licence {self.licence}, context {self.context}, by "
            f"{'llama.cpp' if self.file else 'torch'}"
        )


def judged(one: ModelHere, target: Description) -> ModelHere:
    """A model here; its refusal also says why it is no draft for a target."""
    larger = one.name == target.model or one.parameters > stated_parameters(target.model) / 2
    reasons = {
        one.refusal: bool(one.refusal),
        "its tokenizer is not the target's": one.family != target.tokenizer_fingerprint,
        "it has more than half of the target's parameters": larger,
        "it takes more than half of this machine's memory": 2 * one.size > memory_size() > 0,
    }
    return one._replace(refusal=next((why for why, holds in reasons.items() if holds), ""))


def stated_parameters(name: str) -> float:
    """Parameters that a model's name states, such as 7B; infinite where it states none."""
    found = re.search(r"(?<![\d.])(\d+(?:\.\d+)?)([bm])(?![a-z0-9])", Path(name).name.lower())
    return float(found[1]) * {"b": 1e9, "m": 1e6}[found[2]] if found else math.inf


def published_for(model: str, here: Sequence[ModelHere]) -> list[PublishedDraft]:
    """Published drafts of at most half of a target's parameters that are not here, the smallest
    file first.
    """
    table = read_json(Path(__file__).parent / "families.json", InvalidRequest)
    name, most = Path(model).name.lower(), stated_parameters(model) / 2e6
    known = {part for one in here if one.family for part in (one.name, one.directory.name)}
    rows = read_record(table, tuple[PublishedDraft, ...])
    fit = [one for one in rows if one.family in name and one.millions <= most]
    missing = [one for one in fit if (one.file or one.repository) not in known]
    return sorted(missing, key=lambda one: (one.megabytes, -len(one.family)))


def fetch_agreed(published: Sequence[PublishedDraft], tokenizer: str) -> None:
    """Fetch the two smallest drafts that this installation can load, if the user agrees.

    Raises InvalidRequest where there is none or nobody can be asked. See fetch().
    """
    known = [one for one in published if is_installed("llama_cpp" if one.file else "torch")][:2]
    if not known or not sys.stdin.isatty():
        why = "stdin is no terminal, so nobody can be asked" if known else "no draft is known"
        raise InvalidRequest(f"--download: nothing is fetched: {why}")
    say("\n".join(map(str, known)))
    if input("fetch these? [y/N] ").strip().lower() in ("y", "yes"):
        say("\n".join(f"fetched {fetch(one, tokenizer)}" for one in known))


def fetch(draft: PublishedDraft, tokenizer: str) -> Path:
    """Download a draft. Returns its directory. A GGUF file gets its checkpoint's tokenizer beside.

    Raises Mismatch for a tokenizer of another fingerprint, before any weights are fetched.
    """
    source = find_model(draft.tokenizer or draft.repository, weights=False)
    if Tokenizer(source).fingerprint() != tokenizer:
        raise Mismatch(f"{draft.repository} is not fetched: its tokenizer is not the target's")
    place = find_model(draft.repository, file=draft.file)
    for path in source.glob("tokenizer*.json") if draft.file else ():
        shutil.copy(path, place)
    return place
