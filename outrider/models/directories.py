"""Finds model files by directory, hub name or as the bundled pair."""

from __future__ import annotations

from pathlib import Path

import inference
from inference.command import say
from inference.errors import UnsupportedModel
from inference.model.checkpoints.hub import find_model, is_gguf
from inference.model.checkpoints.weight_files import unread_files
from inference.text.tokenizer import Tokenizer

EMBEDDED = Path(inference.__file__).parent / "data"


def find_directory(name: str | None, embedded: str, *, weights: bool = True) -> Path:
    """Find a model's directory by its path or hub name; without a name, the directory of the
    embedded model of this kind.

    weights: whether weights are needed
    """
    if name is None:
        return EMBEDDED / embedded
    if is_gguf(name):
        raise UnsupportedModel(f"{name} is a GGUF file: a checkpoint in safetensors is needed here")
    path = Path(name)
    if path.is_dir() and any(path.glob("*.gguf")) and not any(path.glob("*.safetensors")):
        raise UnsupportedModel(f"{name} holds weights as GGUF only: name the file itself")
    return find_model(name, weights=weights)


def note_unread(directory: Path) -> None:
    """Report weight files in a model's directory that are not read."""
    if names := unread_files(directory):
        say(f"note: {directory}: ignored, not weights of the model: {', '.join(names[:8])}")


def find_tokenizer(name: str | None, embedded: str) -> Tokenizer:
    """Find the tokenizer of a model, for a client that loads no model."""
    if name is not None and is_gguf(name):
        from outrider.models.gguf_file import gguf_tokenizer

        return gguf_tokenizer(Path(name))
    return Tokenizer(find_directory(name, embedded, weights=False))
