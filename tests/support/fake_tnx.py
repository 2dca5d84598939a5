"""A strict stand-in for transformers-neuronx 0.13: real logits on the CPU, and an exception where
the real thing fails, or errs silently.

Rules: the package's sources (aws-neuron/transformers-neuronx 1ade6d7: llama/model.py, base.py,
decoder.py, bucket.py, hlo.py, module.py). `LegacyImage.install` makes this machine an instance with
such packages for one test.
"""

from __future__ import annotations

import bisect
import json
import sys
import threading
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from inference.model.cache import empty_cache, write_slots
from inference.model.checkpoint import load_decoder
from tests.support.fake_neuron import lay_out

VERSIONS = {
    "transformers-neuronx": "0.13.1315",
    "torch-neuronx": "2.8.0.2.10.16998",
    "neuronx-cc": "2.21.33363.0",
    "transformers": "4.57.6",
}
STALE = 1e4
"""Stands in every slot that a call must not read: the keys of other texts lie there."""


class LlamaConfig:
    """The package's view of config.json, with its defaults."""

    def __init__(self, raw: dict[str, Any]) -> None:
        for name in (
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "vocab_size",
            "rms_norm_eps",
        ):
            setattr(self, name, raw[name])
        self.num_key_value_heads = raw.get("num_key_value_heads", raw["num_attention_heads"])
        self.attention_head_size = raw["hidden_size"] // raw["num_attention_heads"]
        self.vocab_size: int = raw["vocab_size"]
        self.rope_theta = raw.get("rope_theta", 10000)
        self.rope_scaling = raw.get("rope_scaling")


class LlamaForSampling:
    """One row: speculative_forward over a cache whose slots are positions."""

    image: LegacyImage

    def __init__(self, config, *, n_positions=2048, batch_size=1, amp='f32', tp_degree=2,
                 context_length_estimate=None, context_unroll=None, unroll=None,
                 neuron_config=None, prefixed_length=0, **kwargs):  # fmt: skip  # type: ignore[no-untyped-def]
        assert not kwargs, f"{sorted(kwargs)} are swallowed there without a word"
        assert batch_size == 1, "the 1-D cache_ids are one sequence's"
        assert amp in ("f32", "bf16", "f16")
        assert context_length_estimate == 0, (
            "half-length prompt encoders are compiled beside the speculative decoder"
        )
        self.config = LlamaConfig(json.loads((config / "config.json").read_text(encoding="utf-8")))
        self.amp, self.tp_degree, self.directory = amp, tp_degree, config
        self.token_buckets = sorted(n_positions) if isinstance(n_positions, list) else [n_positions]
        self.heads: list[
            tuple[int, int]
        ] = []  # speculation length, batch size: in the order they were enabled
        self.calls: list[tuple[int, int]] = []  # first slot and length of each
        self.loaded = False
        self._one_call = threading.Lock()

    @classmethod
    def from_pretrained(cls, pretrained_model_path, *model_args, **kwargs):  # type: ignore[no-untyped-def]
        model = cls(Path(pretrained_model_path), *model_args, **kwargs)
        cls.image.models.append(model)
        return model

    def enable_speculative_decoder(self, speculation_length, batch_sizes=None):  # type: ignore[no-untyped-def]
        assert not self.loaded, (
            "its programs are compiled by to_neuron: enable_speculative_decoder comes first"
        )
        lengths = (
            [speculation_length] if isinstance(speculation_length, int) else speculation_length
        )
        for length in lengths:
            assert length < min(self.token_buckets), (
                "a call as long as its bucket is taken for the encoding of a prompt"
            )
        self.heads += [(length, batch_sizes or 1) for length in lengths]

    def to_neuron(self) -> None:
        if self.image.busy:
            raise RuntimeError(
                "nrt_allocate_neuron_cores: NeuronCore(s) not available - Requested:2 Available:0"
            )
        dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[self.amp]
        self._decoder = load_decoder(
            self.directory,
            positions=self.token_buckets[-1],
            vocabulary=self.config.vocab_size,
            dtype=dtype,
            device=torch.device("cpu"),
        )
        self._cache = empty_cache(self._decoder.config, 1, self.token_buckets[-1] - 1, dtype)
        self._spoil(0)
        self.loaded = True

    def speculative_forward(
        self, input_ids, cache_ids=None, start_ids=None, speculation_length=None
    ):  # type: ignore[no-untyped-def]
        assert self.loaded, "to_neuron comes first"
        assert speculation_length is not None, (
            "without a length the token decoder's logits are sliced by -None"
        )
        lengths = [length for length, _ in self.heads]
        found = lengths[
            bisect.bisect_left(lengths, input_ids.shape[1], hi=len(lengths) - 1)
        ]  # as there: by the input, not by the argument
        if tuple(input_ids.shape) != (1, found):
            raise AssertionError(
                f"1th input shape mismatch. Expected {(1, found)}, but got {tuple(input_ids.shape)}"
            )
        assert found == speculation_length
        assert cache_ids.dtype == start_ids.dtype == torch.int32
        assert start_ids.tolist() == [0], "the padding on the left, which is masked"
        first = int(cache_ids[0])
        assert cache_ids.tolist() == list(range(first, first + found)), (
            "the mask sees what lies before the least id, then a triangle"
        )
        next(
            bucket for bucket in self.token_buckets if bucket > int(cache_ids.max())
        )  # StopIteration there, too
        if self.image.fails:
            raise RuntimeError(self.image.fails)
        if not self._one_call.acquire(blocking=False):
            raise RuntimeError("two calls at once share one cache")
        try:
            self.calls.append((first, found))
            return self._compute(input_ids, first)
        finally:
            self._one_call.release()

    @torch.inference_mode()
    def _compute(self, input_ids: Tensor, first: int) -> Tensor:  # [k, vocab_size, 1]
        k = input_ids.shape[1]
        self._spoil(first)
        slots = torch.arange(self.token_buckets[-1], dtype=torch.int32)
        seen, causal = (
            (slots < first).to(torch.int32)[None, None],
            torch.ones(k, k, dtype=torch.int32).tril()[None],
        )
        positions, pick = slots[first : first + k][None], torch.arange(k)[None]
        row = torch.zeros(1, dtype=torch.int32)
        out = self._decoder(input_ids, row, positions, seen, causal, pick, self._cache)
        write_slots(self._cache, row, positions, out.new)
        return self._decoder.logits(out.states).transpose(0, 1).transpose(1, 2)

    def _spoil(self, first: int) -> None:
        """Garbage in every slot from here on."""
        for part in self._cache.tensors:
            part[:, first:] = STALE


@dataclass
class LegacyImage:
    """A machine with an old Neuron image: what it has, and the models that were loaded on it."""

    device: bool = True
    busy: bool = False
    fails: str = ""
    instance: str = "trn1.2xlarge"
    versions: dict[str, str] = field(default_factory=lambda: dict(VERSIONS))
    models: list[LlamaForSampling] = field(default_factory=list)

    def install(self, patch: pytest.MonkeyPatch, folder: Path) -> LegacyImage:
        from inference.backends import legacy_neuron

        lay_out(patch, folder, self.versions, device=self.device)
        (folder / "product_name").write_text(self.instance, encoding="ascii")
        module = types.SimpleNamespace(
            LlamaForSampling=type("LlamaForSampling", (LlamaForSampling,), {"image": self})
        )
        patch.setitem(sys.modules, "transformers_neuronx", module)  # type: ignore[arg-type]
        patch.setattr(legacy_neuron, "DEVICE", folder / "neuron0")
        return self
