"""llama.cpp through llama-cpp-python's low-level interface: what a GGUF file is, and a context.

This is the only module that calls the library.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference.errors import InvalidRequest, MissingExtra, Unavailable, UnsupportedModel
from inference.extras import require
from inference.model.checkpoints.weight_files import sample
from inference.tree.token_tree import IntArray

SEQUENCES = 256
"""Number of sequences in llama.cpp's context: its maximum."""

MIN_BATCH = 256
"""Minimum number of tokens of a decode: llama.cpp has outputs for as many sequences."""

_ERROR = 4  # ggml_log_level
_ALL_LAYERS = 1 << 16
_MODEL_SPLIT_NONE = 0
_FLOAT32 = 0  # ggml_type
_ALL_FLOAT32 = "0"  # general.file_type
_ERRORS: list[str] = []
"""Errors that the library reported during this call; the first is the reason."""


def import_llama_cpp() -> Any:
    """Import the package; raise MissingExtra where it is not installed. Its log is kept silent."""
    require("gguf", "a GGUF file")
    try:
        library = importlib.import_module("llama_cpp")
    except (ImportError, OSError, RuntimeError) as error:  # as it fails to find its own library
        raise MissingExtra(f"llama-cpp-python does not start: {error}") from error
    library.llama_log_set(_log(library), ctypes.c_void_p(0))
    return library


_CALLBACKS: list[Any] = []


def _log(library: Any) -> Any:
    """A callback that stores errors. The library has only its address, so it is stored here."""
    if not _CALLBACKS:

        def store_error(level: int, text: bytes, _: Any) -> None:
            if level == _ERROR:
                _ERRORS.append(text.decode(errors="replace").strip())

        _CALLBACKS.append(library.llama_log_callback(store_error))
    return _CALLBACKS[0]


def _why() -> str:
    return _ERRORS[0] if _ERRORS else "it does not say why"


class GgufFacts(NamedTuple):
    """Facts that a GGUF file states about its model."""

    architecture: str
    weights: str  # kind and size in llama.cpp's words, such as "qwen2 0.5B Q4_K - Medium"
    parameters: int
    size: int  # bytes of the weights
    tokens: tuple[str, ...]  # by id, as the file spells them; as many as the head has rows
    max_positions: int
    limited_by: str  # the key of the metadata that sets max_positions
    window: int  # positions that some layers see at most; 0 where all see every position
    states: bool  # running states are kept, beside keys or instead of them
    stop_ids: frozenset[int]  # llama.cpp's list: ends of text, turn and message, and more
    float32: bool  # all weights are

    def needs_shadows(self, capacity: int) -> bool:
        """Whether windows end within a row of so many positions.

        llama.cpp gives a cell to another token where only one sequence has it and that sequence's
        next position has it outside the window. But a text may be cut back to see it again.
        """
        return 0 < self.window <= capacity

    @classmethod
    def read(cls, path: Path) -> GgufFacts:
        """Read a file's header. Raises InvalidRequest, UnsupportedModel or MissingExtra."""
        _check_magic(path)
        library = import_llama_cpp()
        params = library.llama_model_default_params()
        params.no_alloc, params.n_gpu_layers = True, 0
        params.load_mode = library.LLAMA_LOAD_MODE_NONE
        model = _load(library, path, params)
        try:
            return _facts(library, model, path)
        finally:
            library.llama_model_free(model)


def supports_gpu() -> bool:
    """Whether llama.cpp was built for a GPU: CUDA, Metal or another."""
    return bool(import_llama_cpp().llama_supports_gpu_offload())


def check_gpu() -> None:
    """Raise InvalidRequest if llama.cpp was built for no GPU."""
    if not supports_gpu():
        raise InvalidRequest(
            "llama-cpp-python was built without a GPU's support: use --device cpu, or install it "
            "anew with CMAKE_ARGS=-DGGML_CUDA=on"
        )


def fingerprint(path: Path) -> str:
    """A hash of a file's size, head and tail: it distinguishes files without reading them whole."""
    return hashlib.sha256(b"".join(sample(path))).hexdigest()[:32]


def _check_magic(path: Path) -> None:
    if not path.is_file():
        raise InvalidRequest(f"no such file: {path}")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise UnsupportedModel(f"{path} is not a GGUF file: it does not begin with GGUF")


def _load(library: Any, path: Path, params: Any) -> Any:
    _ERRORS.clear()
    model = library.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        raise UnsupportedModel(f"llama.cpp cannot load {path}: {_why()}")
    return model


def _facts(library: Any, model: Any, path: Path) -> GgufFacts:
    architecture = _metadata(library, model, "general.architecture")
    refused = {
        "has an encoder": library.llama_model_has_encoder(model),
        "generates text by diffusion": library.llama_model_is_diffusion(model),
    }
    for what, is_so in refused.items():
        if is_so:
            raise UnsupportedModel(f"{path}: architecture {architecture} {what}")
    vocab, text = library.llama_model_get_vocab(model), ctypes.create_string_buffer(128)
    library.llama_model_desc(model, text, len(text))
    ids = range(library.llama_vocab_n_tokens(vocab))
    return GgufFacts(
        architecture=architecture,
        weights=text.value.decode(errors="replace"),
        parameters=library.llama_model_n_params(model),
        size=library.llama_model_size(model),
        tokens=tuple(
            (library.llama_vocab_get_text(vocab, number) or b"").decode(errors="replace")
            for number in ids
        ),
        max_positions=library.llama_model_n_ctx_train(model),
        limited_by=f"{architecture}.context_length",
        window=library.llama_model_n_swa(model),
        states=library.llama_model_is_recurrent(model) or library.llama_model_is_hybrid(model),
        stop_ids=frozenset(number for number in ids if library.llama_vocab_is_eog(vocab, number)),
        float32=_metadata(library, model, "general.file_type") == _ALL_FLOAT32,
    )


def _metadata(library: Any, model: Any, key: str) -> str:
    value = ctypes.create_string_buffer(256)
    library.llama_model_meta_val_str(model, key.encode(), value, len(value))
    return value.value.decode(errors="replace")


class TokenBatch(NamedTuple):
    """Tokens that are computed together, each as a member of its sequences."""

    tokens: IntArray  # [n]
    positions: IntArray  # [n]
    sequences: Sequence[Sequence[int]]  # [n]
    picked: NDArray[np.bool_]  # [n] whether the token's logits are returned

    @classmethod
    def together(cls, parts: Sequence[TokenBatch]) -> TokenBatch:
        tokens, positions, sequences, picked = zip(*parts, strict=True)
        joined = [members for part in sequences for members in part]
        return cls(
            np.concatenate(tokens), np.concatenate(positions), joined, np.concatenate(picked)
        )


class ContextSizes(NamedTuple):
    """Sizes of a context: maximum keys, tokens of a decode, and sequences."""

    cells: int
    batch: int
    sequences: int


class GgufContext:
    """A model with its keys: one decode at a time. It is the Memory of gguf_branches.

    shadows: whether each sequence has a shadow with the same cells
    gpu: number of the GPU that computes all layers; None for the CPU
    """

    def __init__(
        self,
        path: Path,
        facts: GgufFacts,
        sizes: ContextSizes,
        *,
        shadows: bool,
        threads: int,
        gpu: int | None,
    ) -> None:
        library = import_llama_cpp()
        if gpu is not None:
            check_gpu()
        params = library.llama_model_default_params()
        params.n_gpu_layers = 0 if gpu is None else _ALL_LAYERS
        params.split_mode, params.main_gpu = _MODEL_SPLIT_NONE, gpu or 0
        self._library, self._vocabulary = library, len(facts.tokens)
        cells, batch, self.sequences = sizes
        self._offsets = (0, self.sequences) if shadows else (0,)
        model = _load(library, path, params)
        given = library.llama_context_default_params()
        given.n_ctx, given.n_batch, given.n_ubatch = max(cells, batch), batch, batch
        given.n_seq_max = self.sequences * len(self._offsets)
        given.n_outputs_max = max(batch, given.n_seq_max)
        given.kv_unified = given.swa_full = given.no_perf = True
        given.n_threads = given.n_threads_batch = threads
        if facts.float32:  # flash attention rounds to 16 bits
            given.type_k = given.type_v = _FLOAT32
            given.flash_attn_type = library.LLAMA_FLASH_ATTN_TYPE_DISABLED
        given.offload_kqv = given.op_offload = gpu is not None
        self._context = library.llama_init_from_model(model, given)
        if not self._context:
            library.llama_model_free(model)
            raise Unavailable(f"llama.cpp has no room for {cells} keys of {path.name}: {_why()}")
        self._memory = library.llama_get_memory(self._context)
        self._batch = library.llama_batch_init(batch, 0, SEQUENCES)
        weakref.finalize(self, _free, library, self._batch, self._context, model)

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        for offset in self._offsets:
            self._library.llama_memory_seq_cp(
                self._memory, source + offset, target + offset, start, end
            )

    def remove(self, sequence: int, start: int) -> None:
        for offset in self._offsets:
            self._library.llama_memory_seq_rm(self._memory, sequence + offset, start, -1)

    def decode(self, asked: TokenBatch) -> NDArray[np.float32]:
        """Compute tokens, and return logits of the picked ones: [picked, vocabulary], overwritten
        by the next call.

        Raises Unavailable if llama.cpp fails; its cells may then hold some of the tokens.
        """
        batch, n = self._batch, len(asked.tokens)
        members = [
            [sequence + offset for offset in self._offsets for sequence in ids]
            for ids in asked.sequences
        ]
        batch.n_tokens = n
        for pointer, values in (
            (batch.token, asked.tokens),
            (batch.pos, asked.positions),
            (batch.logits, asked.picked),
            (batch.n_seq_id, np.array([len(ids) for ids in members])),
        ):
            np.ctypeslib.as_array(pointer, (n,))[:] = values
        for at, ids in enumerate(members):
            for place, sequence in enumerate(ids):
                batch.seq_id[at][place] = sequence
        _ERRORS.clear()
        failed = self._library.llama_decode(self._context, batch)
        if failed:
            raise Unavailable(f"llama.cpp computed nothing (code {failed}): {_why()}")
        shape = int(np.count_nonzero(asked.picked)), self._vocabulary
        if not shape[0]:
            self._library.llama_synchronize(self._context)
            return np.zeros(shape, dtype=np.float32)
        logits = self._library.llama_get_logits(self._context)
        return np.ctypeslib.as_array(logits, shape)


def _free(library: Any, batch: Any, context: Any, model: Any) -> None:
    library.llama_batch_free(batch)
    library.llama_free(context)
    library.llama_model_free(model)
