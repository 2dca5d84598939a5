"""Loads a causal model by the transformers library, and tests it with a small tree."""

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

from inference.backends.cuda.model import CudaGraphs, RecordedModel
from inference.backends.libraries.transformers_model import TransformersModel
from inference.backends.libraries.tree_lines import TreeTrial
from inference.errors import UnsupportedModel
from inference.model.checkpoints.checkpoint import DTYPES, check_vocabulary
from inference.model.checkpoints.library_config import WINDOW_FIELDS, LibraryConfig, Reach
from inference.model.checkpoints.weight_files import stored_type, weight_files

_ERRORS = (
    *(AttributeError, AssertionError, ImportError, IndexError, KeyError, NotImplementedError),
    *(OSError, RuntimeError, SafetensorError, TypeError, ValueError),
)
"""Errors that the library raises if it cannot load or run a model."""

_IN_FOURS = "outrider_in_fours"


class CudaLibraryModel(RecordedModel, TransformersModel):
    """A TransformersModel whose forward passes are recorded and replayed. Not yet run on CUDA."""

    def _head_nodes(self, pick: Tensor) -> tuple[Tensor | int, Tensor | None]:
        """Select all nodes (0) if there are several rows: shapes must not depend on the picks."""
        return (pick[0], None) if len(pick) == 1 else (0, pick.long())


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
    """Load a checkpoint's causal model from safetensors, without running code of the checkpoint.

    dtype: precision of all weights; None: the result of stored_type()

    Raises UnsupportedModel if the weights do not fit the model, or the logits of a tree differ from
    those of its paths.
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
    """Load the library's model. Raises one of _ERRORS."""
    logging.disable_progress_bar()
    loader: Any = AutoModelForCausalLM
    library, info = loader.from_pretrained(
        directory,
        dtype=dtype,
        attn_implementation="eager",
        use_safetensors=True,
        local_files_only=True,
        trust_remote_code=False,
        output_loading_info=True,
    )
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[what]:
            name, words = sorted(map(str, info[what]))[0], what.removesuffix("_keys")
            raise ValueError(f"tensor {name} is {words} ({len(info[what])} in all)")
    return library.requires_grad_(False).eval()


def _has_experts(library: nn.Module) -> bool:
    """Return whether a model has experts, so that shapes depend on the tokens. Checks class names:
    of experts in transformers 5, of the layers with experts in transformers 4.
    """
    names = (type(module).__name__ for module in library.modules())
    return any(name.endswith(("Experts", "MoE", "MoeBlock")) for name in names)


def in_fours(library: Any) -> None:
    """Make experts of a float32 model compute at least four tokens at a time.

    Kernels round differently for few matrix rows, and the number of an expert's tokens depends on
    the batch. Raises ImportError with transformers 4, where experts cannot be replaced.
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
    """Compute a layer's experts. If an expert has fewer than four tokens, they are repeated.

    hidden_states: [N, hidden]
    top_k_index, top_k_weights: [N, k]
    """
    few = torch.bincount(top_k_index.flatten()) < 4
    repeated = few[top_k_index].any(-1)
    arguments = (
        torch.cat((tensor, *[tensor[repeated]] * 3))
        for tensor in (hidden_states, top_k_index, top_k_weights)
    )
    output: Tensor = type(experts).forward.__wrapped__(experts, *arguments)
    return output[: len(hidden_states)]


_REACH = 4
"""Size of windows and chunks in the trial: less than the length of the trial's paths."""


@contextmanager
def _short_reaches(library: Any, reaches: Mapping[str, Reach]) -> Iterator[dict[str, Reach]]:
    """Set the library's windows and chunks to _REACH within this context; yield the reaches."""
    config = library.config.get_text_config()
    settings = {name: getattr(config, name, None) for name in WINDOW_FIELDS}
    values = {name: value for name, value in settings.items() if value is not None}
    try:
        for name in values:
            setattr(config, name, _REACH)
        yield {kind: Reach(*(size and _REACH for size in reach)) for kind, reach in reaches.items()}
    finally:
        for name, value in values.items():
            setattr(config, name, value)


@torch.no_grad()
def check_trees(library: nn.Module, config: LibraryConfig, vocabulary: int) -> None:
    """Raise ValueError unless the logits of a tree equal those of its paths."""
    trial = TreeTrial.of(vocabulary)
    with _short_reaches(library, config.reaches) as reaches:
        tried = TransformersModel(
            library, reaches, rows=2, capacity=12, max_nodes=5, vocabulary=vocabulary
        )
        nodes = tried.logits_of(trial.prompt, trial.tree)
        paths = torch.from_numpy(trial.paths).to(tried.device, torch.int64)
        expected = library(input_ids=paths, use_cache=False).logits[..., :vocabulary].float()
    exact = tried.dtype == torch.float32
    trial.check(nodes.cpu().numpy(), expected.cpu().numpy(), float32=exact)
