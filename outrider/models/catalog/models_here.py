"""Models on this machine, and published ones that may draft for a target."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from grpc_comm.translate import Description
from inference.command import say
from inference.errors import InvalidRequest, Mismatch, OutriderError, UnknownArchitecture
from inference.files.json_file import Count, Positive, Record, Text, read_json, read_record
from inference.model.checkpoints.config import read_config
from inference.model.checkpoints.hub import find_model, is_gguf
from inference.model.checkpoints.library_config import read_library_config
from inference.model.checkpoints.weight_files import stored_tensors
from inference.text.tokenizer import Tokenizer
from inference.text.tokenizer_settings import TokenizerIdentity, TokenizerSettings
from outrider.client.connecting import tokenizer_identity
from outrider.models.found_model import EMBEDDED, find_directory
from outrider.models.machine import memory_size, size_words
from outrider.options.roles import ListRole, PullRole


class ModelHere(NamedTuple):
    """A model on this machine.

    family: fingerprint of its tokenizer; empty for an unusable model
    settings: its tokenizer's
    """

    name: str
    directory: Path  # for a GGUF file, the file itself
    size: int  # bytes
    parameters: int
    family: str
    refusal: str = ""  # why the model cannot be used
    settings: TokenizerSettings | None = None

    def drafts_for(self, target: TokenizerIdentity) -> bool:
        """Return whether the model's tokenizer matches that of a target."""
        mine = TokenizerIdentity(self.family, self.settings)
        return bool(self.family) and not mine.disagreement(target)

    @property
    def gguf(self) -> bool:
        """Whether llama.cpp computes the model; else torch does."""
        return is_gguf(self.directory.name)

    def as_flag(self, flag: str) -> dict[str, Any]:
        """Return the flag that names the model; empty for the bundled pair, which needs none."""
        return {} if self.directory.parent == EMBEDDED else {flag: self.name}

    def record(self) -> dict[str, object]:
        """Return the model as plain data for JSON."""
        fields = self._asdict()
        del fields["settings"]
        return {**fields, "directory": str(self.directory)}


def pull(options: PullRole) -> int:
    """Download a model from the hub (resuming an earlier download), or check a directory."""
    if is_gguf(options.name):
        model = _look_into(Path(options.name))
    else:
        model = _look(options.name, find_directory(options.name, "target"))
    if model.refusal:
        raise InvalidRequest(f"{options.name} is in {model.directory}, but {model.refusal}")
    say(f"{model.name}: {size_words(model.size)} in {model.directory}")
    return 0


def list_here(options: ListRole) -> int:
    """Print the models on this machine, and the matching pairs."""
    paths = [Path(path) for path in (options.directory or "").split(",") if path]
    models = list(find_models(paths))
    pairs = list(fitting(models))
    if options.as_json:
        record = {"models": [model.record() for model in models], "pairs": pairs}
        print(json.dumps(record, default=list))
        return 0
    for model in models:
        about = model.refusal or count_words(model.parameters)
        print(f"{model.name:44} {size_words(model.size):>9}  {about}")
    print("pairs, with matching tokenizers:" if pairs else "no pair fits: tokenizers differ")
    for draft, target in pairs:
        print(f"  {draft} drafts for {target}")
    return 0


def count_words(parameters: float) -> str:
    """Return a number of parameters with its unit."""
    scale, unit = (1e9, "B") if parameters >= 1e9 else (1e6, "M")
    return f"{parameters / scale:.2f} {unit} parameters"


def fitting(models: Sequence[ModelHere]) -> Iterator[tuple[str, str]]:
    """Yield the names of each draft and larger target whose tokenizers match."""
    usable = [model for model in models if model.family]
    for target in usable:
        identity = TokenizerIdentity(target.family, target.settings)
        for draft in usable:
            if draft.parameters < target.parameters and draft.drafts_for(identity):
                yield draft.name, target.name


def find_models(paths: Sequence[Path]) -> Iterator[ModelHere]:
    """Yield the embedded pair, the models in the hub's cache, and models_below()."""
    for role in ("draft", "target"):
        yield _look(f"outrider-embedded-{role}", EMBEDDED / role)
    yield from _cached()
    yield from models_below(paths)


def models_below(paths: Sequence[Path]) -> Iterator[ModelHere]:
    """Yield models in directories, and GGUF files. Raises InvalidRequest for a missing path."""
    for path in paths:
        if not path.exists():
            raise InvalidRequest(f"{path}: no such directory or file")
        for config in sorted(path.glob("**/config.json")):
            yield _look(str(config.parent), config.parent)
        for file in [path] if path.is_file() else sorted(path.glob("**/*.gguf")):
            yield _look_into(file)


def _cached() -> Iterator[ModelHere]:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return
    for repository in sorted(repositories, key=lambda repository: repository.repo_id):
        revisions = sorted(repository.revisions, key=lambda revision: revision.last_modified)
        if repository.repo_type == "model" and revisions:
            place = revisions[-1].snapshot_path
            yield from map(_look_into, sorted(place.glob("*.gguf")))
            if not any(place.glob("*.gguf")):
                yield _look(repository.repo_id, place)


def _look(name: str, directory: Path) -> ModelHere:
    weights = list(directory.glob("*.safetensors"))
    size = sum(path.stat().st_size for path in directory.iterdir() if path.is_file())
    try:
        _check_config(directory)
        if not weights:
            raise InvalidRequest("it has no weights as safetensors")
        family, settings = Tokenizer(directory).identity
        parameters = sum(math.prod(tensor.shape) for tensor in stored_tensors(directory).values())
        return ModelHere(name, directory, size, parameters, family, settings=settings)
    except (OutriderError, OSError) as error:
        return ModelHere(name, directory, size, 0, "", str(error))


def _check_config(directory: Path) -> None:
    """Raise an OutriderError unless our decoder or the transformers library supports the model."""
    try:
        read_config(directory)
    except UnknownArchitecture:
        read_library_config(directory)


def _look_into(path: Path) -> ModelHere:
    size = path.stat().st_size if path.is_file() else 0
    try:
        from outrider.models.other_libraries import GgufFile

        model = GgufFile.find(str(path))
        family, settings = model.tokenizer.identity
        return ModelHere(str(path), path, size, model.config.parameters, family, settings=settings)
    except OutriderError as error:
        return ModelHere(str(path), path, size, 0, "", str(error))


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
