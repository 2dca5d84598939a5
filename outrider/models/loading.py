"""Finds models, and loads them with the device, precision and sequence length of the options. Only
loading needs torch.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from inference.command import has_display, say
from inference.errors import InvalidRequest, UnknownArchitecture
from inference.model.checkpoints.config import ModelConfig, read_config
from inference.model.checkpoints.hub import is_gguf, split_revision
from inference.text.tokenizer import Tokenizer
from outrider.models.found_model import (
    Capacity,
    FoundModel,
    LoadedModel,
    find_directory,
    note_unread,
)
from outrider.models.machine import size_words
from outrider.options.groups import (
    DeviceOptions,
    LegacyOptions,
    OffloadOptions,
    Quantization,
    TargetModelOptions,
    backend_of,
)

if TYPE_CHECKING:
    import torch

    from inference.backends.eager import EagerModel
    from inference.backends.neuron.legacy import LegacyNeuronModel
    from inference.model.checkpoints.checkpoint import Loading
    from inference.model.decoder import Decoder
    from inference.model.layer_offload import Offload

LARGE = 200e6
"""Bytes from which on a model's loading is announced where no progress can be shown."""


@contextmanager
def loading_status(name: str) -> Iterator[Callable[[Loading], None]]:
    """Show the bytes read and the time left, on a terminal that nothing else uses. Elsewhere print
    one line at the beginning, for a large model only.
    """
    console = Console(stderr=True)
    drawn = console.is_terminal and not console.is_dumb_terminal and not has_display()
    columns = (TextColumn("loading {task.description}", markup=False), BarColumn(bar_width=24))
    with Progress(
        *columns,
        DownloadColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        disable=not drawn,
    ) as progress:
        task = progress.add_task(name, total=None)

        def report(loading: Loading) -> None:
            if loading.bytes_read == 0 and loading.size > LARGE and not drawn:
                files = f"{loading.files} files, " * (loading.files > 1)
                say(f"loading {name}: {files}{size_words(loading.size)}")
            progress.update(task, completed=loading.bytes_read, total=loading.size)

        yield report


PREFILL_NODES = 256  # prompt tokens in one forward pass


@dataclass(frozen=True)
class Checkpoint(FoundModel):
    """A safetensors checkpoint that Outrider's own decoder computes."""

    config: ModelConfig
    kind: ClassVar[str] = "a checkpoint of Outrider's own decoder"
    embedded: bool = False
    quantization: Quantization | None = None  # of the matrices; None: as stored
    offload: Offload | None = None  # where the layers' weights are, if not on the device
    precision: torch.dtype | None = None  # default of --dtype; None: the checkpoint's own

    def fingerprint(self) -> str:
        from inference.model.checkpoints.weight_files import fingerprint

        identity = fingerprint(self.directory)
        if self.quantization is None:
            return identity
        return hashlib.sha256(f"{identity} {self.quantization}".encode()).hexdigest()[:32]

    def settled(self, options: DeviceOptions, *, drafts: bool) -> Self:
        fixed = self.embedded or self.offload or options.dtype or self.quantization
        if fixed or options.device.startswith("neuron"):
            return self
        from outrider.models.devices import find_compute_type

        picked = find_compute_type(self.name, self.directory, options, drafts=drafts)
        if picked is None:
            return self
        return replace(self, precision=picked.precision, quantization=picked.matrices)

    def load(self, options: DeviceOptions, capacity: Capacity) -> LoadedModel:
        if options.device == "neuron-legacy":
            if not isinstance(options, LegacyOptions):
                raise InvalidRequest(
                    "--device neuron-legacy is for roles target and verify_target: draft on cpu or "
                    "cuda"
                )
            return _load_legacy(options, self, capacity.sequence_length)
        return self.load_eager(options, capacity)

    def load_eager(self, options: DeviceOptions, capacity: Capacity) -> EagerModel:
        """Load the decoder as a model on the chosen device. See FoundModel.load()."""
        import torch

        from inference.model.checkpoints.checkpoint import DTYPES
        from outrider.models.devices import describe, pick_device, set_threads

        device = pick_device(options.device)
        requested = options.dtype or ("float32" if self.embedded else None)
        start = time.perf_counter()
        note_unread(self.directory)
        with loading_status(self.name) as report:
            decoder = self.load_decoder(
                positions=capacity.sequence_length,
                vocabulary=capacity.vocabulary(self.tokenizer.vocabulary),
                dtype=DTYPES[requested] if requested else self.precision,
                device=device,
                tell=report,
            )
        with torch.device("meta"):  # all parameters, offloaded and quantized ones included
            shapes = type(decoder)(decoder.config, 1, decoder.vocabulary)
        parameters = sum(parameter.numel() for parameter in shapes.parameters())
        if device.type == "cpu":
            set_threads(options.threads, parameters)
        stored = decoder.model.embed_tokens.weight.dtype
        precision = str(stored).removeprefix("torch.")
        if self.quantization is not None:
            precision += f", {self.quantization} matrices"
        say(
            f"{self.name}: {parameters / 1e6:.1f} M parameters, {precision} on "
            f"{describe(device)}, loaded in {time.perf_counter() - start:.1f} s"
        )
        return _on_device(decoder, capacity)

    def load_decoder(self, *, device: torch.device, **sizes: Any) -> Decoder:
        """Load the decoder, quantized if set. sizes: further arguments of
        inference.model.checkpoints.checkpoint.load_decoder()
        """
        from inference.model.checkpoints.checkpoint import load_decoder
        from inference.model.decoder import layers_on
        from inference.model.layer_offload import load_offloaded
        from inference.model.quantized import quantize

        if self.offload:
            return load_offloaded(self.directory, device=device, offload=self.offload, **sizes)
        decoder = load_decoder(self.directory, device=device, layers=layers_on(device), **sizes)
        return decoder if self.quantization is None else quantize(decoder, self.quantization)


def find_target(options: TargetModelOptions) -> FoundModel:
    """Find the target of --target_model or --model, else the embedded target. Raises InvalidRequest
    for --layer_offload with any model but a checkpoint of Outrider's decoder.
    """
    model = find_named(options.target_name, "target", backend_of(options))
    if not isinstance(options, OffloadOptions) or options.layer_offload is None:
        return model
    if not isinstance(model, Checkpoint):
        raise InvalidRequest(f"--layer_offload: not supported: {model.name} is {model.kind}")
    return replace(model, offload=options.layer_offload)


def find_named(
    name: str | None, embedded: str, backend: str | None = None, *, weights: bool = True
) -> FoundModel:
    """Find the checkpoint or GGUF file of this name, or the embedded model of this kind.

    backend: what computes a checkpoint; None for Outrider's decoder, or for the transformers
        library if the decoder does not support the architecture
    weights: whether weights are needed
    """
    if name is not None and is_gguf(name):
        from outrider.models.other_libraries import GgufFile

        if backend is not None:
            raise InvalidRequest(f"--backend {backend}: {name} is a GGUF file, for llama.cpp")
        return GgufFile.find(name)
    if backend != "transformers":
        try:
            return find_checkpoint(name, embedded, weights=weights)
        except UnknownArchitecture:
            if backend is not None:
                raise
    from outrider.models.other_libraries import LibraryCheckpoint

    directory = find_directory(name, embedded, weights=weights)
    return LibraryCheckpoint.find(_model_name(name, embedded), directory)


def find_checkpoint(name: str | None, embedded: str, *, weights: bool = True) -> Checkpoint:
    """Find the checkpoint of this name, or the embedded model of this kind: find_directory()."""
    directory = find_directory(name, embedded, weights=weights)
    label, config = _model_name(name, embedded), read_config(directory)
    return Checkpoint(label, directory, config, Tokenizer(directory), name is None)


def find_tokenizer(name: str | None, embedded: str) -> Tokenizer:
    """Find the tokenizer of a model, for a client that loads no model."""
    if name is not None and is_gguf(name):
        from outrider.models.other_libraries import gguf_tokenizer

        return gguf_tokenizer(Path(name))
    return Tokenizer(find_directory(name, embedded, weights=False))


def _model_name(name: str | None, embedded: str) -> str:
    return split_revision(name or f"outrider-embedded-{embedded}")[0]


def _load_legacy(
    options: LegacyOptions, checkpoint: Checkpoint, sequence_length: int
) -> LegacyNeuronModel:
    """Load a target on transformers-neuronx: one row, chains of up to --max_tree_nodes tokens."""
    from inference.backends.neuron.legacy import load_legacy_neuron
    from inference.model.checkpoints.checkpoint import DTYPES

    return load_legacy_neuron(
        checkpoint.directory,
        checkpoint.config,
        sequence_length=sequence_length,
        vocabulary=checkpoint.tokenizer.vocabulary,
        chain=options.max_tree_nodes,
        tensor_parallel=options.tensor_parallel,
        dtype=DTYPES[options.dtype or ("float32" if checkpoint.embedded else "bfloat16")],
        say=say,
    )


def _on_device(decoder: Decoder, capacity: Capacity) -> EagerModel:
    """Return a model with this decoder. On CUDA its forward passes are recorded and replayed,
    unless layers are offloaded; not yet run on a GPU.
    """
    from inference.model.layer_offload import OffloadedLayers

    device = decoder.model.embed_tokens.weight.device
    rows, slots, nodes = capacity.rows, capacity.slots, capacity.max_nodes
    if device.type == "cuda" and not isinstance(decoder.model.layers, OffloadedLayers):
        from inference.backends.cuda.model import CudaGraphs, CudaModel

        recorder = CudaGraphs(device)
        return CudaModel(decoder, rows=rows, capacity=slots, max_nodes=nodes, recorder=recorder)
    from inference.backends.eager import EagerModel

    return EagerModel(decoder, rows=rows, capacity=slots, max_nodes=nodes)
