"""Short names of model pairs, and the choice of a target and its draft for a machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from inference.command import nearest
from inference.errors import InvalidRequest, install, is_installed
from inference.text.tokenizer_settings import TokenizerIdentity
from outrider.models.catalog.models_here import (
    ModelHere,
    PublishedModel,
    published_models,
    stated_parameters,
)
from outrider.models.machine import cores, has_bfloat16, memory_size

EMBEDDED_PAIR = "embedded"
"""Short name of the bundled pair."""

PROCESSOR_SHARE, GPU_SHARE = 0.6, 0.7
"""Estimated share of memory for a pair's weights. Key-value caches and programs take the rest."""

BYTES_PER_CORE = 1e9
"""Estimated maximum bytes of a target's weights for each CPU core, for a usable speed."""

Model = ModelHere | PublishedModel
"""A model to choose from. Models of one family share a tokenizer."""

M = TypeVar("M", ModelHere, PublishedModel)


class MachineFacts(NamedTuple):
    """Facts about a machine that decide the choice. `memory` is the GPU's, if one is used."""

    memory: int  # bytes
    cores: int
    gpu: bool = False
    bfloat16: bool = False  # the processor has instructions for it
    torch: bool = True  # which computes checkpoints in safetensors
    llama_cpp: bool = True  # which computes GGUF files

    @property
    def room(self) -> float:
        """Bytes that the weights of a pair may take."""
        return self.memory * (GPU_SHARE if self.gpu else PROCESSOR_SHARE)

    @property
    def prefers_gguf(self) -> bool:
        return self.llama_cpp and not (self.torch and self.bfloat16)

    @property
    def reason(self) -> str:
        """Why the machine prefers checkpoints or GGUF files, in words."""
        if not self.prefers_gguf:
            what = "GPU" if self.gpu else "processor"
            has = f"this {what} computes bfloat16: checkpoints by torch"
            return has if self.bfloat16 else f"checkpoints by torch; {WITHOUT_LLAMA_CPP}"
        why = "without torch" if not self.torch else "without instructions for bfloat16"
        return f"{why}, GGUF files by llama.cpp are the fastest here"

    def computes(self, model: Model) -> bool:
        return self.llama_cpp if model.gguf else self.torch


WITHOUT_LLAMA_CPP = f"{install('gguf')} adds 4-bit files, which are smaller and faster"


def this_machine() -> MachineFacts:
    """Return the facts about this machine. Its GPU is torch's, or Apple's through llama.cpp."""
    torch_here, llama_cpp = is_installed("torch"), is_installed("llama_cpp")
    if torch_here:
        import torch

        if torch.cuda.is_available():
            memory = torch.cuda.mem_get_info()[1]
            return MachineFacts(
                memory, cores(), True, torch.cuda.is_bf16_supported(), True, llama_cpp
            )
    unified = llama_cpp and sys.platform == "darwin"
    return MachineFacts(memory_size(), cores(), unified, has_bfloat16(), torch_here, llama_cpp)


def choose_pair(models: Sequence[M], machine: MachineFacts, size: str = "") -> tuple[M, M] | None:
    """Choose the largest target that runs on the machine at a usable speed, and its smallest draft;
    None if no pair fits.

    size: the target's parameters, such as 7b, then at any speed; empty for any size
    """
    fit = [
        (target, draft)
        for target in models
        for draft in models
        if _drafts_for(draft, target) and target.size + draft.size <= machine.room
        if machine.computes(target) and machine.computes(draft)
        if has_size(target.name, size)
    ]
    limit = BYTES_PER_CORE * machine.cores
    quick = [pair for pair in fit if size or machine.gpu or pair[0].size <= limit]
    smallest = min((target.size for target, _ in fit), default=0)
    quick = quick or [pair for pair in fit if pair[0].size == smallest]

    def worth(pair: tuple[M, M]) -> tuple[float, ...]:
        target, draft = pair
        liked, alike = target.gguf == machine.prefers_gguf, target.gguf == draft.gguf
        return liked, alike, target.parameters, -draft.size

    return max(quick, key=worth, default=None)


def has_size(model: str, size: str) -> bool:
    """Return whether a model's name states this size; True for an empty size."""
    return not size or stated_parameters(model) == stated_parameters(size)


def choose_draft(models: Sequence[M], machine: MachineFacts) -> M | None:
    """Choose the smallest model that the machine can run, in its preferred format if possible."""
    fit = [model for model in models if machine.computes(model) and model.size <= machine.room]
    return min(
        fit,
        key=lambda model: (model.gguf != machine.prefers_gguf, model.parameters),
        default=None,
    )


def _drafts_for(draft: Model, target: Model) -> bool:
    if isinstance(draft, ModelHere) and isinstance(target, ModelHere):
        same = draft.drafts_for(TokenizerIdentity(target.family, target.settings))
    else:
        same = draft.family == target.family
    return same and 2 * draft.parameters <= target.parameters


def short_names() -> dict[str, list[PublishedModel]]:
    """Return the published models of each short name that `outrider up` accepts."""
    rows = published_models()
    families = dict.fromkeys(row.family for row in rows)
    by_family = {name: [row for row in rows if row.family == name] for name in families}
    return {
        family.rstrip("-."): models
        for family, models in by_family.items()
        if any(_drafts_for(draft, target) for draft in models for target in models)
    }


def targets_of(models: Sequence[PublishedModel]) -> list[str]:
    """Return the sizes of the targets among these models, as users write them: 1.5b."""
    sizes = {
        target.parameters: target
        for target in models
        if any(_drafts_for(draft, target) for draft in models)
    }
    return [f"{stated_parameters(sizes[at].name) / 1e9:g}b" for at in sorted(sizes)]


def read_name(name: str) -> tuple[str, str]:
    """Split NAME or NAME:SIZE into short name and size. Raises InvalidRequest for unknown ones."""
    families = short_names()
    short, _, size = name.lower().partition(":")
    if short not in (*families, EMBEDDED_PAIR):
        names = ", ".join((*families, EMBEDDED_PAIR))
        raise InvalidRequest(f"unknown pair {name!r}: there are {names}{nearest(short, families)}")
    sizes = targets_of(families.get(short, []))
    if size and size not in sizes:
        available = ", ".join(sizes) or "no sizes"
        raise InvalidRequest(f"{name}: {short} has {available}")
    return short, size


def is_called(model: str, short: str, size: str = "") -> bool:
    """Return whether a model has this short name (the longest family in its name) and size."""
    if short == EMBEDDED_PAIR:
        return model.startswith("outrider-embedded")
    name = Path(model).name.lower()
    families = {row.family for row in published_models() if row.family in name}
    return max(families, key=len, default="").rstrip("-.") == short and has_size(model, size)


def listed(machine: MachineFacts) -> Iterator[str]:
    """Yield a line for each short name: its targets' sizes, and the pair chosen for the machine."""
    yield f"{'name':14} {'targets':20} {'here: target, draft':28} {'to fetch':>9}  licence"
    yield f"{EMBEDDED_PAIR:14} {'-':20} {'the bundled pair':28} {'-':>9}  apache-2.0"
    for short, models in short_names().items():
        pair = choose_pair(models, machine)
        able = machine.torch or machine.llama_cpp
        what, size, licence = "nothing fits" if able else "needs torch or llama.cpp", "-", "-"
        if pair is not None:
            what = ", ".join(f"{stated_parameters(model.name) / 1e9:g}b" for model in pair)
            what += " (GGUF)" if pair[0].gguf else " (safetensors)"
            size = f"{sum(model.size for model in pair) / 1e9:.1f} GB"
            licence = "; ".join(dict.fromkeys(model.licence for model in pair))
        yield f"{short:14} {' '.join(targets_of(models)):20} {what:28} {size:>9}  {licence}"
