"""A stand-in for transformers-neuronx 0.13 (aws-neuron/transformers-neuronx 1ade6d7): real logits
on the CPU, and an exception where the package fails, or errs silently.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from inference.model.cache import empty_cache, write_slots
from inference.model.checkpoints.checkpoint import load_decoder
from inference.model.checkpoints.config import read_config, read_raw_config
from tests.support.fake_neuron import lay_out

VERSIONS = {"transformers-neuronx": "0.13.1315", "torch-neuronx": "2.8.0", "transformers": "4.57"}


class LlamaForSampling:
    """One row: speculative_forward over a cache whose slots are positions."""

    def __init__(self, directory: str, *, n_positions: list[int], amp: str, **_: Any) -> None:
        ours, raw = read_config(Path(directory)), read_raw_config(Path(directory))
        theirs = {"rope_theta": raw.get("rope_theta", 10000), "rope_scaling": None}
        read = {"num_key_value_heads": ours.kv_heads, "rms_norm_eps": ours.norm_eps}
        self.config = SimpleNamespace(**theirs | read)
        dtype = torch.float32 if amp == "f32" else torch.bfloat16
        self._loading: dict[str, Any] = {"positions": n_positions[-1], "dtype": dtype}
        self._directory, self._vocabulary = Path(directory), ours.vocab_size

    from_pretrained = classmethod(lambda cls, *args, **named: cls(*args, **named))

    def enable_speculative_decoder(self, lengths: list[int]) -> None:
        self._lengths = lengths

    def to_neuron(self) -> None:
        more: dict[str, Any] = {"device": torch.device("cpu"), "vocabulary": self._vocabulary}
        self._decoder = load_decoder(self._directory, **self._loading, **more)
        sizes = self._loading["positions"] - 1, self._loading["dtype"]
        self._cache = empty_cache(self._decoder.config, 1, *sizes)

    @torch.inference_mode()
    def speculative_forward(
        self, ids: Tensor, *, cache_ids: Tensor, start_ids: Tensor, speculation_length: int
    ) -> Tensor:  # [1, k] -> [k, vocab_size, 1]
        k, first = ids.shape[1], int(cache_ids[0])
        assert k == speculation_length in self._lengths, "a length that was not compiled"
        assert cache_ids.tolist() == list(range(first, first + k)), "slots are positions"
        for part in self._cache.tensors:
            part[:, first:] = 1e4  # what lies behind is of other texts
        slots = torch.arange(self._loading["positions"], dtype=torch.int32)
        seen = (slots < first).to(torch.int32)[None, None]
        causal, picks = torch.ones(k, k, dtype=torch.int32).tril()[None], torch.arange(k)[None]
        places, row = slots[first : first + k][None], torch.zeros(1, dtype=torch.int32)
        out = self._decoder(ids, row, places, seen, causal, picks, self._cache)
        write_slots(self._cache, row, places, out.new)
        return self._decoder.logits(out.states).transpose(0, 1).transpose(1, 2)


def install_tnx(
    patch: pytest.MonkeyPatch, folder: Path, instance: str = "trn1.2xlarge", **versions: str
) -> None:
    """Make this machine an instance with such packages."""
    lay_out(patch, folder, VERSIONS | versions, device=True)
    (folder / "product_name").write_text(instance, encoding="ascii")
    module: Any = SimpleNamespace(LlamaForSampling=LlamaForSampling)
    patch.setitem(sys.modules, "transformers_neuronx", module)
