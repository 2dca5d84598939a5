"""From options to models on devices: where a checkpoint is, which device and precision, how long
a sequence may be.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import inference
from grpc_comm.security import SecurityOptions
from inference.errors import InvalidRequest
from inference.model.config import ModelConfig, read_config
from inference.text import Tokenizer
from outrider.options import DEVICES, Options, is_device

if TYPE_CHECKING:
    from inference.backends.eager import EagerModel
    from inference.backends.legacy_neuron import LegacyNeuronModel
    from inference.model.decoder import Decoder

EMBEDDED = Path(inference.__file__).parent / "data"
_DEFAULT_SEQUENCE_LENGTH = 2048
PREFILL_NODES = 256  # prompt tokens in one call
_SMALL = 32e6  # parameters; below, several threads cost more than they bring
_THREADS = torch.get_num_threads()  # torch's choice


@dataclass(frozen=True)
class Checkpoint:
    """A model that is to be loaded: its directory, and the name it is known by."""

    name: str
    directory: Path
    embedded: bool
    config: ModelConfig
    tokenizer: Tokenizer

    def sequence_length(self, asked: int | None) -> int:
        """Prompt and output together; raises InvalidRequest beyond the model's limit."""
        limit = self.config.max_positions
        if asked is None:
            return min(_DEFAULT_SEQUENCE_LENGTH, limit)
        if not 2 <= asked <= limit:
            field = self.config.limited_by
            raise InvalidRequest(
                f"--sequence_length {asked}: {self.name} takes 2 to {limit} (config.json field "
                f"{field})"
            )
        return asked


def find_checkpoint(options: Options, kind: str) -> Checkpoint:
    """The checkpoint of `kind` ("target" or "draft"): --KIND_model, --model, or the embedded
    one.
    """
    from inference.model.checkpoint import find_model

    if options.artifact:
        raise InvalidRequest(
            f"--artifact is for roles target and verify_target: --role {options.role} loads a "
            "model directory"
        )
    name = (options.target_model if kind == "target" else options.draft_model) or options.model
    directory = find_model(name) if name else EMBEDDED / kind
    return Checkpoint(
        name or f"outrider-embedded-{kind}",
        directory,
        name is None,
        read_config(directory),
        Tokenizer(directory),
    )


def find_tokenizer(options: Options) -> Tokenizer:
    """The tokenizer of --target_model or --model, or that of the embedded pair: for a client
    that loads no model.
    """
    from inference.model.checkpoint import find_model

    name = options.target_model or options.model
    return Tokenizer(find_model(name) if name else EMBEDDED / "target")


def load_model(
    options: Options,
    checkpoint: Checkpoint,
    *,
    rows: int,
    sequence_length: int,
    spare: int,
    max_nodes: int,
) -> EagerModel | LegacyNeuronModel:
    """The checkpoint on the chosen device; `spare` slots a row beyond the sequence hold trees.
    Says what was chosen on stderr.
    """
    from inference.model.checkpoint import DTYPES, load_decoder

    if rows < 1:
        raise InvalidRequest(f"--batch {rows}: at least one row is needed")
    if options.device == "neuron-legacy":
        return _load_legacy(options, checkpoint, sequence_length)
    device = pick_device(options.device)
    dtype = options.dtype or ("float32" if checkpoint.embedded else None)
    decoder = load_decoder(
        checkpoint.directory,
        positions=sequence_length,
        vocabulary=checkpoint.tokenizer.vocabulary,
        dtype=DTYPES[dtype] if dtype else None,
        device=device,
    )
    parameters = sum(parameter.numel() for parameter in decoder.parameters())
    if device.type == "cpu":
        set_threads(options, parameters)
    model = _on_device(
        decoder, device, rows=rows, capacity=sequence_length + spare, max_nodes=max_nodes
    )
    precision = str(model.dtype).removeprefix("torch.")
    print(
        f"{checkpoint.name}: {parameters / 1e6:.1f} M parameters, {precision} on "
        f"{describe(device)}",
        file=sys.stderr,
    )
    return model


def _load_legacy(
    options: Options, checkpoint: Checkpoint, sequence_length: int
) -> LegacyNeuronModel:
    """A target on transformers-neuronx: one row, chains of up to --max_tree_nodes tokens."""
    from inference.backends.legacy_neuron import load_legacy_neuron
    from inference.model.checkpoint import DTYPES

    if options.role not in ("target", "verify_target"):
        raise InvalidRequest(
            "--device neuron-legacy is for roles target and verify_target: draft on cpu or cuda"
        )
    return load_legacy_neuron(
        checkpoint.directory,
        checkpoint.config,
        sequence_length=sequence_length,
        vocabulary=checkpoint.tokenizer.vocabulary,
        chain=options.max_tree_nodes,
        tensor_parallel=options.tensor_parallel,
        dtype=DTYPES[options.dtype or ("float32" if checkpoint.embedded else "bfloat16")],
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )


def _on_device(
    decoder: Decoder, device: torch.device, *, rows: int, capacity: int, max_nodes: int
) -> EagerModel:
    """On CUDA the decoder's calls are recorded and replayed; not yet run on a GPU."""
    if device.type == "cuda":
        from inference.backends.cuda import CudaGraphs, CudaModel

        return CudaModel(
            decoder, rows=rows, capacity=capacity, max_nodes=max_nodes, recorder=CudaGraphs(device)
        )
    from inference.backends.eager import EagerModel

    return EagerModel(decoder, rows=rows, capacity=capacity, max_nodes=max_nodes)


def set_threads(options: Options, parameters: int) -> None:
    """--threads, else one for a small model and torch's choice for others."""
    if options.threads is not None and options.threads < 1:
        raise InvalidRequest(f"--threads {options.threads}: at least one is needed")
    torch.set_num_threads(options.threads or (1 if parameters < _SMALL else _THREADS))


def pick_device(name: str) -> torch.device:
    """The torch device of a --device; auto takes CUDA where there is one. cuda:1 and others are
    not yet run on hardware.
    """
    if name == "neuron":
        raise InvalidRequest(
            "--device neuron is for roles target and verify_target: draft on cpu or cuda"
        )
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not is_device(name):
        raise InvalidRequest(f"--device {name}: one of {', '.join(DEVICES)} or cuda:N is needed")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InvalidRequest(
            f"--device {name}: torch finds no CUDA device here; use --device cpu, or install torch "
            "with CUDA"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InvalidRequest(
            f"--device {name}: torch finds {torch.cuda.device_count()} CUDA devices here, the "
            "first is cuda:0"
        )
    return device


def describe(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    if device.type == "xla":
        return "neuron"
    return f"cpu ({torch.get_num_threads()} threads)"


def security_of(options: Options) -> SecurityOptions:
    """The flags of the network group, as files."""
    names = ("tls_cert", "tls_key", "tls_ca", "token_file", "keys_file")
    files = {name: Path(value) for name in names if (value := getattr(options, name))}
    return SecurityOptions(**files, tls=options.tls, insecure=options.insecure)
