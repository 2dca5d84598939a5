"""Layer offload: a decoder with the weights of its layers in host memory or the checkpoint's files.
One of two buffers computes while the other receives the next layer's weights. Results are
bit-identical to those of the decoder without offload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from inference.errors import InvalidRequest
from inference.model.checkpoints.checkpoint import (
    DTYPES,
    Loading,
    assign,
    empty_decoder,
    is_used,
    opened,
    read_tensors,
)
from inference.model.checkpoints.config import ModelConfig
from inference.model.checkpoints.weight_files import stored_type, weight_files
from inference.model.decoder import Decoder, layers_on
from inference.model.layers import Layer

Offload = Literal["host", "disk"]
"""Location of offloaded weights: host memory, or the checkpoint's files."""

LAYERS = "model.layers."
"""Prefix of tensor names in layers."""

Fetch = Callable[[int, Layer], None]
"""fetch(index, into): copy the weights of layer `index` into the parameters of `into`."""


class Copies:
    """Copies data on a separate thread while the device computes, one copy at a time."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "layer-offload")
        self._started: Future[None] | None = None

    def start(self, copy: Callable[[], None]) -> None:
        """Start a copy, after work that may still read the destination."""
        self._started = self._thread.submit(copy)

    def finish(self) -> None:
        """Let later work wait for the last copy. Raises the copy's error, if any."""
        assert self._started is not None
        self._started.result()


class StreamCopies(Copies):
    """Copies on a separate thread and CUDA stream. Not yet run on a GPU."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def start(self, copy: Callable[[], None]) -> None:
        computed = torch.cuda.Event()  # type: ignore[no-untyped-call]
        computed.record(torch.cuda.current_stream(self._device))

        def on_stream() -> None:
            with torch.cuda.stream(self._stream):
                self._stream.wait_event(computed)
                copy()

        super().start(on_stream)

    def finish(self) -> None:
        super().finish()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)


class OffloadedLayers(nn.Module):
    """A decoder's layers, which share two buffers.

    Iterating yields the layers in order; each is valid until the next one is requested. The last
    layer is followed by a copy of the first, for the next forward pass.

    count: number of layers
    """

    def __init__(
        self, resident: tuple[Layer, Layer], count: int, fetch: Fetch, copies: Copies
    ) -> None:
        super().__init__()
        self.resident = nn.ModuleList(resident)
        self._count, self._fetch, self._copies = count, fetch, copies
        self._at = 1  # buffer of the latest copy
        self._coming: int | None = None  # layer that is being copied

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Layer]:
        if self._coming != 0:  # first forward pass, or the previous one was interrupted
            self._start(0)
        for index in range(self._count):
            self._coming = None
            self._copies.finish()
            layer = self._buffer
            self._start((index + 1) % self._count)
            yield layer

    def _start(self, index: int) -> None:
        self._at, self._coming = 1 - self._at, index
        self._copies.start(partial(self._fetch, index, self._buffer))

    @property
    def _buffer(self) -> Layer:
        layer = self.resident[self._at]
        assert isinstance(layer, Layer)
        return layer


class LayerFiles:
    """The layers of a checkpoint, read from its files on request and not cached."""

    def __init__(self, directory: Path, config: ModelConfig) -> None:
        self._files: list[dict[Path, list[str]]] = [{} for _ in range(config.layers)]
        for path in weight_files(directory):
            with opened(path) as file:
                for name in file.keys():  # noqa: SIM118 (not a dict)
                    if is_used(config, name) and name.startswith(LAYERS):
                        index = int(name.split(".")[2])
                        self._files[index].setdefault(path, []).append(name)

    def __call__(self, index: int, into: Layer) -> None:
        """Copy layer `index` into the parameters of `into`, converting the precision."""
        for name, tensor in self.tensors(index):
            into.get_parameter(name).copy_(tensor)

    def tensors(self, index: int) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors of a layer, with their names in the layer."""
        for path, names in self._files[index].items():
            with opened(path) as file:
                for name in names:
                    yield name.removeprefix(f"{LAYERS}{index}."), file.get_tensor(name)


class HostLayers:
    """The layers of a checkpoint, in pinned host memory. Not yet run on a GPU."""

    def __init__(self, files: LayerFiles, count: int, dtype: torch.dtype) -> None:
        self._layers = [
            {name: tensor.to(dtype).pin_memory() for name, tensor in files.tensors(index)}
            for index in range(count)
        ]

    def __call__(self, index: int, into: Layer) -> None:
        """Copy layer `index` into the parameters of `into`."""
        for name, tensor in self._layers[index].items():
            into.get_parameter(name).copy_(tensor, non_blocking=True)


def load_offloaded(
    directory: Path,
    *,
    positions: int,
    vocabulary: int,
    dtype: torch.dtype | None,
    device: torch.device,
    offload: Offload,
    tell: Callable[[Loading], None] = lambda loading: None,
) -> Decoder:
    """Load a Decoder with offloaded layers, otherwise like load_decoder(). Also raises
    InvalidRequest for "host" on a CPU.
    """
    if offload == "host" and device.type == "cpu":
        raise InvalidRequest(
            "--layer_offload host is for cuda, a CPU computes in host memory: take "
            "--layer_offload disk"
        )
    decoder = empty_decoder(directory, positions, vocabulary)
    config = decoder.config
    used = partial(is_used, config)
    dtype = dtype or DTYPES[stored_type(directory)]
    rest = read_tensors(directory, lambda name: used(name) and not name.startswith(LAYERS), tell)
    for name, tensor in rest:
        assign(decoder, name, tensor.to(device=device, dtype=dtype))
    files = LayerFiles(directory, config)
    fetch = files if offload == "disk" else HostLayers(files, config.layers, dtype)
    copies = StreamCopies(device) if device.type == "cuda" else Copies()
    buffers = _buffer(config, dtype, device), _buffer(config, dtype, device)
    decoder.model.layers = OffloadedLayers(buffers, config.layers, fetch, copies)
    return decoder.to(device).eval()


def _buffer(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Layer:
    with torch.device("meta"):
        layer = Layer(config, layers_on(device))
    return layer.to(dtype).to_empty(device=device).requires_grad_(False)
