"""Loads a causal model of the transformers library, and tries it before it is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from inference.backends.libraries.transformers_model import TransformersModel
from inference.backends.libraries.tree_trial import TreeTrial
from inference.errors import UnsupportedModel
from inference.model.checkpoints.checkpoint import DTYPES, check_vocabulary
from inference.model.checkpoints.library_config import WINDOW_FIELDS, LibraryConfig, Reach
from inference.model.checkpoints.weight_files import stored_type, weight_files

_ERRORS = (
    *(AttributeError, AssertionError, ImportError, IndexError, KeyError, NotImplementedError),
    *(OSError, RuntimeError, SafetensorError, TypeError, ValueError),
)
"""Errors by which the library says that it cannot load or compute a model."""

_IN_FOURS = "outrider_in_fours"


def load_transformers(
    directory: Path,
    config: LibraryConfig,
    *,
    rows: int,
    capacity: int,
    max_nodes: int,
    vocabulary: int,
    dtype: torch.dtype | None,
    device: torch.device,
) -> TransformersModel:
    """Load a checkpoint's causal model, from safetensors and by the library's own code alone.

    dtype: of all weights; None for stored_type()

    Raises UnsupportedModel if the weights do not fit, or the model does not compute trees as it
    computes their paths.
    """
    weight_files(directory)
    check_vocabulary(directory, vocabulary, config.vocab_size)
    dtype = dtype or DTYPES[stored_type(directory)]
    try:
        library = _loaded(directory, dtype).to(device)
        in_fours(library)
        check_trees(library, config, vocabulary)
        sizes: dict[str, Any] = {"rows": rows, "capacity": capacity, "max_nodes": max_nodes}
        if device.type == "cuda" and not config.keeps_states and not _has_experts(library):
            from inference.backends.cuda.graphs import CudaGraphs
            from inference.backends.cuda.library import CudaLibraryModel

            sizes["recorder"] = CudaGraphs(device)
            return CudaLibraryModel(library, config.reaches, vocabulary=vocabulary, **sizes)
        return TransformersModel(library, config.reaches, vocabulary=vocabulary, **sizes)
    except _ERRORS as error:
        reason = " ".join(str(error).split())[:300]
        raise UnsupportedModel(
            f"{directory}: --backend transformers cannot compute this {config.model_type} model: "
            f"{reason}"
        ) from error


def _loaded(directory: Path, dtype: torch.dtype) -> Any:
    """Load the library's model. Raises an error of _ERRORS."""
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    loader: Any = AutoModelForCausalLM
    library, found = loader.from_pretrained(
        directory,
        dtype=dtype,
        attn_implementation="eager",
        use_safetensors=True,
        local_files_only=True,
        trust_remote_code=False,
        output_loading_info=True,
    )
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if found[what]:
            name, words = sorted(map(str, found[what]))[0], what.removesuffix("_keys")
            raise ValueError(f"tensor {name} is {words} ({len(found[what])} in all)")
    return library.requires_grad_(False).eval()


def _has_experts(library: nn.Module) -> bool:
    """Whether the shapes of a call depend on which experts its tokens take. transformers 5 names
    its classes for experts so, transformers 4 those of their layers.
    """
    names = (type(part).__name__ for part in library.modules())
    return any(name.endswith(("Experts", "MoE", "MoeBlock")) for name in names)


def in_fours(library: Any) -> None:
    """Let no expert of a float32 model compute fewer than four tokens.

    Kernels for few rows of a matrix round differently from those for more, and which tokens share
    an expert depends on the others of a call. Raises ImportError for experts with transformers 4,
    where they cannot be replaced.
    """
    try:
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    except ModuleNotFoundError as error:
        if _has_experts(library):
            raise ImportError("a mixture of experts needs transformers 5") from error
        return
    ALL_EXPERTS_FUNCTIONS.register(_IN_FOURS, _compute_in_fours)
    library.set_experts_implementation(_IN_FOURS if library.dtype == torch.float32 else "eager")


def _compute_in_fours(
    experts: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """Compute a layer's experts; tokens of an expert with fewer than four are computed four times.

    hidden_states: [N, hidden]
    top_k_index, top_k_weights: [N, k]
    """
    few = torch.bincount(top_k_index.flatten()) < 4
    repeated = few[top_k_index].any(-1)
    given = (
        torch.cat((part, *[part[repeated]] * 3))
        for part in (hidden_states, top_k_index, top_k_weights)
    )
    made: Tensor = type(experts).forward.__wrapped__(experts, *given)
    return made[: len(hidden_states)]


_REACH = 4
"""Positions of windows and chunks in that trial: fewer than its paths have."""


@contextmanager
def _short_reaches(library: Any, reaches: Mapping[str, Reach]) -> Iterator[dict[str, Reach]]:
    """Let the library's windows and chunks end within the tree that a model is tried with; return
    the reaches that follow.
    """
    config = library.config.get_text_config()
    held = {name: getattr(config, name, None) for name in WINDOW_FIELDS}
    given = {name: value for name, value in held.items() if value is not None}
    try:
        for name in given:
            setattr(config, name, _REACH)
        yield {kind: Reach(*(part and _REACH for part in reach)) for kind, reach in reaches.items()}
    finally:
        for name, value in given.items():
            setattr(config, name, value)


@torch.no_grad()
def check_trees(library: nn.Module, config: LibraryConfig, vocabulary: int) -> None:
    """Raise ValueError unless a tree's logits are those that the library computes of its paths."""
    trial = TreeTrial.of(vocabulary)
    with _short_reaches(library, config.reaches) as reaches:
        tried = TransformersModel(
            library, reaches, rows=2, capacity=12, max_nodes=5, vocabulary=vocabulary
        )
        nodes = tried.logits_of(trial.prompt, trial.tree)
        paths = torch.from_numpy(trial.paths).to(tried.device, torch.int64)
        whole = library(input_ids=paths, use_cache=False).logits[..., :vocabulary].float()
    exact = tried.dtype == torch.float32
    trial.check(nodes.cpu().numpy(), whole.cpu().numpy(), float32=exact)
