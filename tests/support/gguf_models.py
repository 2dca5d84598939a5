"""GGUF files of tiny models, and a context of llama.cpp that can be computed by hand."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from inference.backends import Segment
from inference.backends.eager import choose_at
from inference.backends.gguf.library import SEQUENCES, TokenBatch
from inference.backends.gguf.model import Computation, GgufModel
from inference.errors import Unavailable
from inference.model.decoder import Decoder
from inference.sampling import SamplingParams

if TYPE_CHECKING:
    from gguf import GGUFWriter

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    # of LFM2
    "model.embedding_norm": "token_embd_norm",
    "operator_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w2": "ffn_down",
    "feed_forward.w3": "ffn_up",
    "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "conv.conv": "shortconv.conv",
    "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj",
}


def write_gguf(path: Path, decoder: Decoder, tokenizer: Path, kind: str = "F32") -> Path:
    """Write a decoder of the Llama family.

    tokenizer: a directory with the tokenizer.json of a byte-level BPE
    kind: F32, F16, or what its matrices are quantized to, such as Q8_0
    """
    from gguf import GGUFWriter

    config, writer = decoder.config, GGUFWriter(path, "llama")
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    _add_tokenizer(writer, tokenizer, config.vocab_size)
    tensors = {
        name: _turned(name, weight, decoder)
        for name, weight in decoder.state_dict().items()
        if not (name == "lm_head.weight" and config.tied)
    }
    return _written(writer, path, tensors, kind)


def write_library_gguf(path: Path, library: Any, tokenizer: Path) -> Path:
    """Write the library's Cohere2ForCausalLM, which has windows, or Lfm2ForCausalLM, which has
    running states, in float32.

    tokenizer: as for write_gguf
    """
    from gguf import GGUFWriter

    config = library.config
    writer, heads = GGUFWriter(path, config.model_type), config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(heads)
    writer.add_rope_dimension_count(config.hidden_size // heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    weights = dict(library.model.named_parameters(prefix="model"))
    if config.model_type == "cohere2":
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_eps(config.layer_norm_eps)
        writer.add_logit_scale(config.logit_scale)
        writer.add_sliding_window(config.sliding_window)
        slides = [one == "sliding_attention" for one in config.layer_types]
        writer.add_sliding_window_pattern(slides)
    else:
        writer.add_feed_forward_length(len(library.model.layers[0].feed_forward.w1.weight))
        attends = [one == "full_attention" for one in config.layer_types]
        writer.add_head_count_kv([config.num_key_value_heads * one for one in attends])
        writer.add_layer_norm_rms_eps(config.norm_eps)
        writer.add_shortconv_l_cache(config.conv_L_cache)
    _add_tokenizer(writer, tokenizer, config.vocab_size)
    return _written(writer, path, weights, "F32")


def _written(writer: GGUFWriter, path: Path, tensors: dict[str, torch.Tensor], kind: str) -> Path:
    from gguf import GGMLQuantizationType, LlamaFileType
    from gguf.quants import quantize

    whole = {"F32": LlamaFileType.ALL_F32, "F16": LlamaFileType.MOSTLY_F16}
    writer.add_file_type(whole.get(kind, LlamaFileType.GUESSED))
    for name, weight in tensors.items():
        array: NDArray[np.float32] = np.ascontiguousarray(weight.detach().float().squeeze().numpy())
        as_kind = GGMLQuantizationType[kind] if array.ndim > 1 else GGMLQuantizationType.F32
        writer.add_tensor(_named(name), quantize(array, as_kind), raw_dtype=as_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: GGUFWriter, directory: Path, rows: int) -> None:
    """The vocabulary of a tokenizer.json; rows of the head beyond it are padding."""
    from gguf import TokenType

    raw = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    tokens = {number: token for token, number in raw["model"]["vocab"].items()}
    special = {token["id"] for token in raw["added_tokens"] if token["special"]}
    tokens |= {token["id"]: token["content"] for token in raw["added_tokens"]}
    numbers = range(rows)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([tokens.get(number, f"[PAD{number}]") for number in numbers])
    types = dict.fromkeys(tokens, TokenType.NORMAL) | dict.fromkeys(special, TokenType.CONTROL)
    writer.add_token_types([types.get(number, TokenType.UNUSED) for number in numbers])
    merges = [one if isinstance(one, str) else " ".join(one) for one in raw["model"]["merges"]]
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)


def _named(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if not stem.startswith("model.layers."):
        return f"{NAMES[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.{kind}"


def _turned(name: str, weight: torch.Tensor, decoder: Decoder) -> torch.Tensor:
    """A weight as llama.cpp has it: it turns neighbouring dimensions of a head, we turn halves."""
    heads = {"q_proj": decoder.config.heads, "k_proj": decoder.config.kv_heads}
    part = name.split(".")[-2]
    if part in heads:
        halves = weight.reshape(heads[part], 2, -1, weight.shape[-1])
        weight = halves.transpose(1, 2).reshape(weight.shape)
    return weight


VOCABULARY = 59
PADDED = 64
"""Rows of the head: the last five ids are of no token."""


class Cell(NamedTuple):
    """A key: a hash of the tokens that it was computed from, and its number."""

    seen: int
    number: int


def seen_after(tokens: Sequence[int], model: int) -> int:
    """A hash of what the last of these tokens sees."""
    return zlib.crc32(np.array(tokens, dtype=np.int32).tobytes(), model)


def logits_after(seen: int) -> NDArray[np.float32]:  # [PADDED]
    """What the model says there; ids beyond the vocabulary are the likeliest."""
    logits = np.random.default_rng(seen).normal(0, 3, PADDED).astype(np.float32)
    logits[VOCABULARY:] = 100
    return logits


def choice_after(tokens: Sequence[int]) -> int:
    """The greedy choice behind these tokens."""
    return int(logits_after(seen_after(tokens, 0))[:VOCABULARY].argmax())


def own_text(prompt: Sequence[int], params: SamplingParams, count: int) -> list[int]:
    """The model's text by hand: the choice after each whole prefix."""
    tokens = list(prompt)
    for at in range(len(prompt), len(prompt) + count):
        logits = torch.from_numpy(logits_after(seen_after(tokens, 0))[None, None, :VOCABULARY])
        here = np.array([at - 1])
        sees = np.ones((1, 1), dtype=bool)
        segment = Segment(0, np.array(tokens[-1:]), here, here, sees, sees, here * 0, params)
        tokens += choose_at(logits, torch.tensor([[at]]), [segment])[0].tokens.tolist()
    return tokens[len(prompt) :]


class Cells:
    """A LlamaContext. room: cells that there are. fails: the next decode stops half-way."""

    def __init__(self, model: int = 0, room: int = 10_000, sequences: int = SEQUENCES) -> None:
        self.fails, self.decodes, self.tokens, self.sequences = False, 0, 0, sequences
        self._model, self._room, self._cells = model, room, dict[int, list[Cell]]()

    @property
    def used(self) -> int:
        return len({cell.number for cells in self._cells.values() for cell in cells})

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        held = self._cells.setdefault(target, [])
        assert len(held) == start, "a sequence has one cell at each position"
        held += self._cells[source][start:end]
        assert len(held) == end

    def remove(self, sequence: int, start: int) -> None:
        del self._cells.setdefault(sequence, [])[start:]

    def decode(self, batch: TokenBatch) -> NDArray[np.float32]:
        tokens, positions, sequences, picked = batch
        self.decodes, self.tokens = self.decodes + 1, self.tokens + len(tokens)
        for ids in sequences:
            above = [self._cells.setdefault(sequence, []) for sequence in ids]
            assert above, "a token is of no sequence"
            assert len({tuple(cells[-1:]) for cells in above}) == 1, "coupled sequences differ"
        made = list[NDArray[np.float32]]()
        for at, (token, position, ids) in enumerate(zip(tokens, positions, sequences, strict=True)):
            if self.fails and 2 * at >= len(tokens):
                self.fails = False
                raise Unavailable("llama.cpp computed nothing (code -3): made to fail")
            above = [self._cells.setdefault(sequence, []) for sequence in ids]
            assert all(len(cells) == position for cells in above), "positions are not consecutive"
            seen = seen_after([int(token)], above[0][-1].seen if above[0] else self._model)
            cell = Cell(seen, self.tokens * 1000 + at)
            for cells in above:
                cells.append(cell)
            if picked[at]:
                made.append(logits_after(seen))
        assert self.used <= self._room, "llama.cpp has no free cell"
        return np.array(made, dtype=np.float32).reshape(-1, PADDED)


class StateCells(Cells):
    """A context that keeps the state behind the last token of a sequence, and cannot go back."""

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        assert (start, end) == (0, len(self._cells[source])), "a state is behind a whole sequence"
        super().copy(source, target, start, end)

    def remove(self, sequence: int, start: int) -> None:
        assert not start, "no state is behind a part of a sequence"
        super().remove(sequence, start)

    def decode(self, batch: TokenBatch) -> NDArray[np.float32]:
        assert all(len(ids) == 1 for ids in batch.sequences), "lines have sequences of their own"
        assert all(0 <= ids[0] < self.sequences for ids in batch.sequences)
        return super().decode(batch)


def model_of(computation: Computation, max_nodes: int = 16) -> GgufModel:
    return GgufModel(
        computation,
        max_nodes=max_nodes,
        vocabulary=VOCABULARY,
        kind="tiny F32",
        threads=1,
        device="cpu",
    )
