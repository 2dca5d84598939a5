"""A target on transformers-neuronx, for images of Neuron SDK 2.23 to 2.26. Not yet run on hardware.

It serves one sequence at a time, and chains only. In transformers-neuronx, the cache slot of a
token is its position, and a call writes consecutive slots. So chains work: accepted tokens are
already in their slots, and the next call overwrites rejected tokens. A branching tree is rejected:
the package's tree decoder uses the cache slot as rotary position, so siblings would be computed at
different positions. Logits are returned to the host, which chooses the tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from inference.backends import Chosen, Ranked, Segment
from inference.backends.batch import check_rows
from inference.backends.eager import choose_at, chosen_positions
from inference.backends.neuron.model import runtime_error
from inference.backends.neuron.sdk import DEVICE, INDEX, has_device, instance_family
from inference.errors import InvalidRequest, LimitExceeded, MissingExtra, UnsupportedModel
from inference.model.checkpoints.config import ModelConfig, check_sizes, read_raw_config
from inference.model.checkpoints.weight_files import tensor_shapes
from inference.tree.token_tree import IntArray

PREFILL = 128
"""Maximum prompt tokens in one call."""
_AMP = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
_VERSIONS = {"transformers-neuronx": "0.13.", "torch-neuronx": "2.", "transformers": "4."}
_WHICH = (
    "--device neuron-legacy needs transformers-neuronx 0.13, torch-neuronx 2.6 to 2.8 of Neuron "
    "SDK 2.23 to 2.26 and transformers 4, in an environment of its own with Python 3.11: pip "
    f"install --extra-index-url {INDEX} 'torch-neuronx==2.8.0.2.10.*' 'neuronx-cc==2.21.*' "
    "'libneuronxla==2.2.12677.*' 'transformers-neuronx==0.13.*' 'transformers>=4.51,<5'"
)


class LegacyNeuronModel:
    """A Model for chains over a transformers-neuronx model.

    lengths: numbers of tokens per call for which it was compiled, ascending
    positions: number of cache slots for which it was compiled
    vocabulary: number of token ids of the tokenizer
    """

    rows = 1
    masks = branches = False

    def __init__(
        self, model: Any, lengths: Sequence[int], positions: int, vocabulary: int, dtype: Any
    ) -> None:
        self._model, self._lengths, self._vocabulary = model, tuple(lengths), vocabulary
        self.max_nodes = self._lengths[-1]
        self.capacity = positions - self.max_nodes  # padding is written after the last token
        self.dtype, self.device = dtype, torch.device("xla")

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        """Return the (rows, nodes per row) to which a call of this size is padded."""
        return rows, next((length for length in self._lengths if length >= nodes), self.max_nodes)

    def copy_row(self, source: int, target: int, slots: int) -> None:
        raise InvalidRequest("--device neuron-legacy has one row: there is none to copy")

    @torch.no_grad()
    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        check_rows(segments)
        return [self._choose(segment) for segment in segments]

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        """Raise InvalidRequest: this backend cannot rank."""
        raise InvalidRequest("--device neuron-legacy chooses tokens for a target: it cannot draft")

    def _choose(self, segment: Segment) -> Chosen:
        check_chain(segment)
        logits = self.forward(segment.tokens, int(segment.positions[0]))
        picked = logits[:, torch.tensor(segment.pick, dtype=torch.int64)]
        return choose_at(picked, chosen_positions(segment), [segment])[0]

    def forward(self, tokens: IntArray, first: int) -> Tensor:  # [n] -> [1, n, vocabulary]
        """Return the logits of tokens at positions from `first` on."""
        n, (_, length) = len(tokens), self.padded(1, len(tokens))
        if n > length:
            raise LimitExceeded(f"{n} nodes in one call: this model takes {self.max_nodes}")
        padded = torch.zeros(1, length, dtype=torch.int32)
        padded[0, :n] = torch.tensor(tokens, dtype=torch.int32)
        try:
            logits: Tensor = self._model.speculative_forward(  # [length, vocabulary, 1]
                padded,
                cache_ids=torch.arange(first, first + length, dtype=torch.int32),
                start_ids=torch.zeros(1, dtype=torch.int32),
                speculation_length=length,
            )
        except RuntimeError as error:
            raise runtime_error(error) from error
        return logits[:n, : self._vocabulary, 0][None]


def check_chain(segment: Segment) -> None:
    """Raise InvalidRequest unless the new nodes are a chain in the cache slots that follow the
    context.
    """
    n, first = len(segment.tokens), int(segment.positions[0])
    if not np.array_equal(segment.tree_mask, np.tri(n, dtype=np.bool_)):
        raise InvalidRequest("transformers-neuronx computes chains only, and no branching trees")
    places = np.arange(first, first + n)
    placed = np.array_equal(segment.slots, places) and np.array_equal(segment.positions, places)
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
    """Load a checkpoint on this machine's NeuronCores. Graphs not in the Neuron compile cache are
    compiled, which takes minutes. Raises MissingExtra, InvalidRequest or UnsupportedModel.

    chain: maximum tokens of a chain that can be verified, root included
    """
    check_host(config)
    if read_raw_config(directory).get("tie_word_embeddings") is True and not config.tied:
        raise UnsupportedModel("config.json field tie_word_embeddings: the weights have a head")
    if not 1 <= chain <= PREFILL:
        raise InvalidRequest(f"--max_tree_nodes {chain}: neuron-legacy takes 1 to {PREFILL}")
    # one length for a single node and for a whole chain, so that both use the same program
    lengths = sorted({max(2, chain), PREFILL})
    positions = -(-(sequence_length + PREFILL) // 128) * 128
    check_sizes(tensor_shapes(directory), config, directory)
    say(f"transformers-neuronx compiles for {tensor_parallel} cores what its cache does not hold")
    model = import_module("transformers_neuronx").LlamaForSampling.from_pretrained(
        str(directory),
        batch_size=1,
        amp=_AMP[dtype],
        tp_degree=tensor_parallel,
        n_positions=[positions],
        context_length_estimate=0,
    )
    check_read_alike(model.config, config)
    model.enable_speculative_decoder(lengths)  # must be ascending: it finds a length by bisection
    try:
        model.to_neuron()
    except RuntimeError as error:
        raise runtime_error(error) from error
    legacy = LegacyNeuronModel(model, lengths, positions, vocabulary, dtype)
    for length in lengths:  # the first call with a length initialises its program
        legacy.forward(np.zeros(length, dtype=np.int32), 0)
    return legacy


def check_host(config: ModelConfig) -> None:
    """Raise an error if the packages, the machine or the model are unsuitable."""
    for name, start in _VERSIONS.items():
        try:
            installed = version(name)
        except PackageNotFoundError:
            raise MissingExtra(f"{name} is not installed here. {_WHICH}") from None
        if not installed.startswith(start):
            raise MissingExtra(f"{name} {installed} is installed here. {_WHICH}")
    if not has_device() or instance_family() not in (None, "trn1", "inf2"):
        raise InvalidRequest(f"--device neuron-legacy is for {DEVICE} of a trn1 or inf2 instance")
    biased = config.qkv_bias or config.output_bias or config.mlp_bias
    odd = config.head_dim * config.heads != config.hidden_size
    scaled = config.rope_scaling is not None and config.rope_scaling.original is None
    if config.model_type != "llama" or biased or odd or scaled:
        raise UnsupportedModel(
            "--device neuron-legacy takes Llama (model_type llama) without biases, with heads that "
            "share the hidden size evenly, and rope_scaling of type llama3 or none"
        )


def check_read_alike(theirs: Any, config: ModelConfig) -> None:
    """Raise UnsupportedModel unless transformers-neuronx read config.json as Outrider does: it has
    its own defaults for missing fields.
    """
    scaling = (theirs.rope_scaling or {}).get("factor")
    ours = config.rope_scaling.factor if config.rope_scaling else scaling
    values = (theirs.num_key_value_heads, theirs.rms_norm_eps, theirs.rope_theta, scaling)
    if values != (config.kv_heads, config.norm_eps, config.rope_theta, ours):
        raise UnsupportedModel(
            "config.json: transformers-neuronx reads other key-value heads, rms_norm_eps, "
            f"rope_theta or rope_scaling.factor than are meant: {values}"
        )
