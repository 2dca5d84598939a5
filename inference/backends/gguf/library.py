"""llama.cpp by llama-cpp-python's low-level interface: facts about GGUF files, and contexts.

Only this module calls the library.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from inference.errors import InvalidRequest, MissingExtra, Unavailable, UnsupportedModel, require
from inference.model.checkpoints.weight_files import sample
from inference.tree.token_tree import IntArray

SEQUENCES = 256
"""Maximum number of sequences in a llama.cpp context."""

MIN_BATCH = 256
"""Minimum size of a decode in tokens: llama.cpp needs at least as many outputs as sequences."""

_ERROR = 4  # ggml_log_level
_ALL_LAYERS = 1 << 16
_MODEL_SPLIT_NONE = 0
_FLOAT32 = 0  # ggml_type
_ALL_FLOAT32 = "0"  # general.file_type
_ERRORS: list[str] = []
"""Errors that the library logged during the current call; the first error is the cause."""


def import_llama_cpp() -> Any:
    """Import the package and silence its log. Raises MissingExtra if it is not installed."""
    require("gguf", "a GGUF file")
    try:
        library = importlib.import_module("llama_cpp")
    except (ImportError, OSError, RuntimeError) as error:  # e.g. its shared library is missing
        raise MissingExtra(f"llama-cpp-python does not start: {error}") from error
    library.llama_log_set(_log(library), ctypes.c_void_p(0))
    return library


_CALLBACKS: list[Any] = []


def _log(library: Any) -> Any:
    """Return a callback that stores errors. _CALLBACKS keeps it alive for the C library."""
    if not _CALLBACKS:

        def store_error(level: int, text: bytes, _: Any) -> None:
            if level == _ERROR:
                _ERRORS.append(text.decode(errors="replace").strip())

        _CALLBACKS.append(library.llama_log_callback(store_error))
    return _CALLBACKS[0]


def _why() -> str:
    return _ERRORS[0] if _ERRORS else "it does not say why"


class GgufFacts(NamedTuple):
    """Facts about the model in a GGUF file."""

    architecture: str
    weights: str  # llama.cpp's description of the weights, such as "qwen2 0.5B Q4_K - Medium"
    parameters: int
    size: int  # bytes of the weights
    tokens: tuple[str, ...]  # spelling by id, for each row of the head
    max_positions: int
    limited_by: str  # the metadata key that determines max_positions
    window: int  # size of the sliding window of some layers in positions; 0 without windows
    states: bool  # whether some layers have running states, with or without keys
    stop_ids: frozenset[int]  # llama.cpp's list: end of text, of turn, of message, and others
    float32: bool  # whether all weights are in float32

    def needs_shadows(self, capacity: int) -> bool:
        """Return whether the sliding window is shorter than a row of `capacity` positions.

        llama.cpp reuses a cell that belongs to one sequence once it is outside the window of the
        next position. But a sequence may be cut, and then need the cell again.
        """
        return 0 < self.window <= capacity

    @classmethod
    def read(cls, path: Path) -> GgufFacts:
        """Read the header of a file. Raises InvalidRequest, UnsupportedModel or MissingExtra."""
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
    """Return whether llama.cpp was built with GPU support, such as CUDA or Metal."""
    return bool(import_llama_cpp().llama_supports_gpu_offload())


def check_gpu() -> None:
    """Raise InvalidRequest if llama.cpp was built without GPU support."""
    if not supports_gpu():
        raise InvalidRequest(
            "llama-cpp-python was built without a GPU's support: use --device cpu, or install it "
            "anew with CMAKE_ARGS=-DGGML_CUDA=on"
        )


def fingerprint(path: Path) -> str:
    """Return a hash of a file's size, head and tail, which avoids reading the whole file."""
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
    """Tokens to compute together, each as a member of one or more sequences."""

    tokens: IntArray  # [n]
    positions: IntArray  # [n]
    sequences: Sequence[Sequence[int]]  # [n]
    picked: NDArray[np.bool_]  # [n] whether the token's logits are returned

    @classmethod
    def together(cls, batches: Sequence[TokenBatch]) -> TokenBatch:
        tokens, positions, sequences, picked = zip(*batches, strict=True)
        joined = [members for batch in sequences for members in batch]
        return cls(
            np.concatenate(tokens), np.concatenate(positions), joined, np.concatenate(picked)
        )


class Cells(Protocol):
    """The cells of llama.cpp's sequences."""

    sequences: int

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Add the cells of sequence `source` at positions `start` to `end` - 1 to `target`."""
        ...

    def remove(self, sequence: int, start: int) -> None:
        """Remove the cells from position `start` on from a sequence. Cells that no sequence has any
        more become free.
        """
        ...


class LlamaContext(Cells, Protocol):
    """A model and its cells."""

    def decode(self, batch: TokenBatch) -> NDArray[np.float32]:
        """Compute tokens as members of sequences. Returns logits [picked, vocabulary], which the
        next call overwrites.

        Raises Unavailable if llama.cpp fails; cells may then contain some of the tokens.
        """
        ...


class ContextSizes(NamedTuple):
    """The maximum keys, tokens per decode, and sequences of a context."""

    cells: int
    batch: int
    sequences: int


class GgufContext:
    """A LlamaContext of llama.cpp. Not thread-safe.

    shadows: whether a second sequence shares the cells of each one, which protects them from reuse
    gpu: index of the GPU that computes all layers; None for the CPU
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
        options = library.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = max(cells, batch), batch, batch
        options.n_seq_max = self.sequences * len(self._offsets)
        options.n_outputs_max = max(batch, options.n_seq_max)
        options.kv_unified = options.swa_full = options.no_perf = True
        options.n_threads = options.n_threads_batch = threads
        if facts.float32:  # flash attention rounds to 16 bits
            options.type_k = options.type_v = _FLOAT32
            options.flash_attn_type = library.LLAMA_FLASH_ATTN_TYPE_DISABLED
        options.offload_kqv = options.op_offload = gpu is not None
        self._context = library.llama_init_from_model(model, options)
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

    def decode(self, batch: TokenBatch) -> NDArray[np.float32]:
        buffer, n = self._batch, len(batch.tokens)
        members = [
            [sequence + offset for offset in self._offsets for sequence in ids]
            for ids in batch.sequences
        ]
        buffer.n_tokens = n
        for pointer, values in (
            (buffer.token, batch.tokens),
            (buffer.pos, batch.positions),
            (buffer.logits, batch.picked),
            (buffer.n_seq_id, np.array([len(ids) for ids in members])),
        ):
            np.ctypeslib.as_array(pointer, (n,))[:] = values
        for at, ids in enumerate(members):
            for place, sequence in enumerate(ids):
                buffer.seq_id[at][place] = sequence
        _ERRORS.clear()
        failed = self._library.llama_decode(self._context, buffer)
        if failed:
            raise Unavailable(f"llama.cpp computed nothing (code {failed}): {_why()}")
        shape = int(np.count_nonzero(batch.picked)), self._vocabulary
        if not shape[0]:
            self._library.llama_synchronize(self._context)
            return np.zeros(shape, dtype=np.float32)
        logits = self._library.llama_get_logits(self._context)
        return np.ctypeslib.as_array(logits, shape)


def _free(library: Any, batch: Any, context: Any, model: Any) -> None:
    library.llama_batch_free(batch)
    library.llama_free(context)
    library.llama_model_free(model)
