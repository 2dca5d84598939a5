"""A target on transformers-neuronx, for images of Neuron SDK 2.23 to 2.26. Not yet run on hardware.

It serves one sequence at a time, and chains only. In that package the cache slot of a token is its
position, and a call writes consecutive slots. A chain fits: accepted tokens already lie in their
slots, and the next call overwrites rejected ones.

A branching tree is refused. The package's tree decoder uses the cache slot as rotary position, so
siblings would be computed at different positions.

Logits come back to the host, and the choice is made here.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from inference.backends import Chosen, Ranked, Segment
from inference.backends.batch import check_rows
from inference.backends.choices import choose_at, chosen_positions
from inference.backends.neuron import runtime_error
from inference.backends.neuron_sdk import DEVICE, INDEX, has_device, instance_family
from inference.errors import InvalidRequest, LimitExceeded, MissingExtra, UnsupportedModel
from inference.json_file import read_json
from inference.model.config import ModelConfig, check_sizes
from inference.model.weight_files import tensor_shapes
from inference.tree import IntArray

PREFILL = 128
"""Prompt tokens in one call."""

FAMILIES = ("trn1", "inf2")
_AMP = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
_PACKAGES = ("transformers-neuronx", "torch-neuronx", "neuronx-cc", "transformers")
_INSTALL = (
    f"pip install --extra-index-url {INDEX} 'torch-neuronx==2.8.0.2.10.*' 'neuronx-cc==2.21.*' "
    "'libneuronxla==2.2.12677.*' "
    "'transformers-neuronx==0.13.*' 'transformers>=4.51,<5'"
)
_WHICH = (
    "--device neuron-legacy needs transformers-neuronx 0.13, torch-neuronx 2.6 to 2.8 of Neuron "
    "SDK 2.23 to 2.26 and transformers 4, "
    f"in an environment of its own with Python 3.11: {_INSTALL}"
)


class Speculative(Protocol):
    """The part of a transformers-neuronx model that is called here."""

    def speculative_forward(
        self,
        input_ids: Tensor,
        cache_ids: Tensor | None = None,
        start_ids: Tensor | None = None,
        speculation_length: int | None = None,
    ) -> Tensor:
        """Return logits [k, vocab_size, 1].

        input_ids: [1, k]
        cache_ids: [k], consecutive
        start_ids: [1]
        """
        ...


class LegacyNeuronModel:
    """A Model for chains over a transformers-neuronx model.

    lengths: tokens of a call that it was compiled for, ascending
    positions: cache slots that it was compiled for
    vocabulary: ids of the tokenizer
    """

    rows = 1
    masks = branches = False
    copies_rows = False  # there is no other one

    def __init__(
        self,
        model: Speculative,
        lengths: Sequence[int],
        *,
        positions: int,
        vocabulary: int,
        dtype: torch.dtype,
    ) -> None:
        self._model, self._lengths, self._vocabulary = model, tuple(lengths), vocabulary
        self.max_nodes = self._lengths[-1]
        self.capacity = positions - self.max_nodes  # padding is written behind the last token
        self.dtype, self.device = dtype, torch.device("xla")

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        """Return the padded (rows, nodes per row) that a call of this size computes."""
        return rows, next((length for length in self._lengths if length >= nodes), self.max_nodes)

    def copy_row(self, source: int, target: int, slots: int) -> None:
        raise InvalidRequest("--device neuron-legacy has one row: there is none to copy")

    @torch.no_grad()
    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        check_rows(segments)
        return [self._choose(segment) for segment in segments]

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        """Raise InvalidRequest: this backend only chooses."""
        raise InvalidRequest(
            "--device neuron-legacy serves a target: it chooses tokens and cannot draft"
        )

    def warm(self, say: Callable[[str], None]) -> None:
        """Call every compiled length once: the first call of a length initialises it."""
        for length in self._lengths:
            start = time.perf_counter()
            self._forward(np.zeros(length, dtype=np.int32), 0)
            say(
                f"chains of up to {length} tokens ran in "
                f"{(time.perf_counter() - start) * 1000:.1f} ms"
            )

    def _choose(self, segment: Segment) -> Chosen:
        check_chain(segment)
        logits, pick = self._forward(segment.tokens, int(segment.positions[0])), segment.pick
        picked = logits[:, torch.tensor(pick, dtype=torch.int64)]
        return choose_at(picked, chosen_positions(segment), [segment])[0]

    def _forward(self, tokens: IntArray, first: int) -> Tensor:
        """Return logits [1, n, vocabulary] of n tokens whose first position is `first`."""
        n, (_, length) = len(tokens), self.padded(1, len(tokens))
        if n > length:
            raise LimitExceeded(f"{n} nodes in one call: this model takes {self.max_nodes}")
        padded = torch.zeros(1, length, dtype=torch.int32)
        padded[0, :n] = torch.tensor(tokens, dtype=torch.int32)
        slots = torch.arange(first, first + length, dtype=torch.int32)
        try:
            logits = self._model.speculative_forward(
                padded,
                cache_ids=slots,
                start_ids=torch.zeros(1, dtype=torch.int32),
                speculation_length=length,
            )
        except RuntimeError as error:
            raise runtime_error(error) from error
        return logits[:n, : self._vocabulary, 0][None]


def check_chain(segment: Segment) -> None:
    """Raise InvalidRequest unless the new nodes are a chain that continues the cache slot by
    slot.
    """
    n, first = len(segment.tokens), int(segment.positions[0])
    if not np.array_equal(segment.tree_mask, np.tri(n, dtype=np.bool_)):
        raise InvalidRequest(
            "this model computes chains only: transformers-neuronx computes no branching trees"
        )
    consecutive = np.arange(first, first + n)
    placed = np.array_equal(segment.slots, consecutive) and np.array_equal(
        segment.positions, consecutive
    )
    if not placed or segment.context.shape != (1, first) or not segment.context.all():
        raise InvalidRequest(
            f"transformers-neuronx keeps position i in cache slot i: {n} nodes from position "
            f"{first} on do not continue the cache"
        )


def load_legacy_neuron(
    directory: Path,
    config: ModelConfig,
    *,
    sequence_length: int,
    vocabulary: int,
    chain: int,
    tensor_parallel: int,
    dtype: torch.dtype,
    say: Callable[[str], None],
) -> LegacyNeuronModel:
    """Load a checkpoint on this machine's NeuronCores.

    chain: longest chain that can be verified, in tokens, the root included

    What the Neuron compile cache does not hold is compiled, which takes minutes. Raises
    MissingExtra, InvalidRequest or UnsupportedModel.
    """
    check_model(config)
    tied = read_json(directory / "config.json", UnsupportedModel).field("tie_word_embeddings")
    if tied.value is True and not config.tied:
        raise UnsupportedModel(
            f"{tied.where} is true, and the weights have a head of their own: set it to false for "
            "--device neuron-legacy"
        )
    check_machine()
    found = check_versions()
    if not 1 <= chain <= PREFILL:
        raise InvalidRequest(
            f"--max_tree_nodes {chain}: with --device neuron-legacy 1 to {PREFILL}"
        )
    # one length serves a node alone and a whole chain: the same program for both
    lengths = sorted({max(2, chain), PREFILL})
    positions = -(-(sequence_length + PREFILL) // 128) * 128
    check_sizes(tensor_shapes(directory), config, directory)
    say(
        f"transformers-neuronx {found['transformers-neuronx']}: compiling for {tensor_parallel} "
        "cores what the cache does not hold, then loading"
    )
    model = _import().from_pretrained(
        str(directory),
        batch_size=1,
        amp=_AMP[dtype],
        tp_degree=tensor_parallel,
        n_positions=[positions],
        context_length_estimate=0,
    )
    check_understood(model.config, config)
    model.enable_speculative_decoder(lengths)  # ascending: it looks a length up by bisection
    try:
        model.to_neuron()
    except RuntimeError as error:
        raise runtime_error(error) from error
    legacy = LegacyNeuronModel(
        model, lengths, positions=positions, vocabulary=vocabulary, dtype=dtype
    )
    legacy.warm(say)
    return legacy


def check_versions() -> dict[str, str]:
    """Return the packages' versions without importing them.

    Raises MissingExtra, saying what was found and what is needed.
    """
    found: dict[str, str] = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            raise MissingExtra(f"{name} is not installed here. {_WHICH}") from None
    build = re.match(r"2\.[678]\.\d+\.2\.(\d+)\b", found["torch-neuronx"])
    right = {
        "transformers-neuronx": found["transformers-neuronx"].startswith("0.13."),
        "torch-neuronx": build is not None
        and 23 <= int(build[1]) + 16 <= 26,  # 2.N is of SDK 2.(N + 16)
        "transformers": found["transformers"].startswith("4."),
    }
    wrong = [f"{name} {found[name]}" for name, fits in right.items() if not fits]
    if wrong:
        raise MissingExtra(f"found here: {', '.join(wrong)}. {_WHICH}")
    return found


def check_machine() -> None:
    """Raise InvalidRequest without a Neuron device that transformers-neuronx supports."""
    if not has_device():
        raise InvalidRequest(
            f"--device neuron-legacy: this machine has no Neuron device ({DEVICE} is missing)"
        )
    family = instance_family()
    if family is not None and family not in FAMILIES:
        raise InvalidRequest(
            f"--device neuron-legacy is for {' and '.join(FAMILIES)}, this is a {family} instance: "
            "use --device neuron"
        )


def check_model(config: ModelConfig) -> None:
    """Raise UnsupportedModel, naming the field, for what transformers-neuronx computes wrongly
    or not at all.
    """
    wrong = {
        "model_type": config.model_type != "llama",
        "head_dim": config.head_dim * config.heads != config.hidden_size,
        "attention_bias": config.qkv_bias or config.output_bias,
        "mlp_bias": config.mlp_bias,
        "rope_scaling": config.rope_scaling is not None and config.rope_scaling.original is None,
    }
    fields = [name for name, is_wrong in wrong.items() if is_wrong]
    if fields:
        raise UnsupportedModel(
            f"config.json field {fields[0]}: --device neuron-legacy takes Llama without biases, "
            "with rope_scaling of type llama3 or none"
        )


def check_understood(theirs: Any, config: ModelConfig) -> None:
    """Raise UnsupportedModel unless transformers-neuronx read config.json as we do.

    It has defaults of its own for fields that it does not find.
    """
    ours = {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "attention_head_size": config.head_dim,
        "vocab_size": config.vocab_size,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
    }
    scaling = config.rope_scaling
    for name, value in ours.items():
        if getattr(theirs, name) != value:
            raise UnsupportedModel(
                f"config.json field {name} is {value}, transformers-neuronx reads "
                f"{getattr(theirs, name)}"
            )
    read = theirs.rope_scaling or {}
    if scaling is not None and read.get("factor") != scaling.factor:
        raise UnsupportedModel(
            f"config.json field rope_scaling.factor is {scaling.factor}, transformers-neuronx "
            f"reads {read.get('factor')}"
        )


def _import() -> Any:
    try:
        return import_module("transformers_neuronx").LlamaForSampling
    except (ImportError, AttributeError) as error:
        raise MissingExtra(
            f"transformers-neuronx is installed and cannot be imported ({error}). {_WHICH}"
        ) from error
