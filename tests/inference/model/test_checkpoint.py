"""Checkpoints: a field that would be computed wrongly is refused by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from inference.errors import UnsupportedModel
from inference.model.checkpoints.config import RopeScaling, parse_config, read_config
from inference.model.checkpoints.weight_files import fingerprint, weight_files
from inference.model.decoder import Decoder
from tests.support.models import TINY, loaded, write_checkpoint
from tests.support.refusals import assert_refused


def rewrite(directory: Path, **changes: torch.Tensor | None) -> Path:
    """The checkpoint with these tensors put in, or left out where None."""
    path = directory / "model.safetensors"
    tensors = load_file(path) | changes
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)
    return directory


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "mixtral"}, "model_type 'mixtral'"),
    ({"model_type": "gemma2"}, "model_type 'gemma2'"),
    ({"model_type": None}, "model_type None"),
    ({"num_experts": 8}, "num_experts 8 mixtures"),
    ({"num_local_experts": 4}, "num_local_experts 4 mixtures"),
    ({"n_routed_experts": 64}, "n_routed_experts 64 mixtures"),
    ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
    ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config {'quant_method'"),
    ({"layer_types": ["full_attention", "linear"]}, "layer_types ['linear']"),
    ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling.rope_type 'yarn'"),
    ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic'"),
    ({"rope_parameters": {"rope_type": "longrope"}}, "rope_parameters.rope_type 'longrope'"),
    (
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}},
        "rope_parameters.partial_rotary_factor 0.25",
    ),
    (
        {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e6}}},
        "rope_parameters layer",
    ),
    ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor None number"),
    (
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        "rope_scaling.original_max_position_embeddings None integer",
    ),
    ({"hidden_size": None}, "hidden_size None integer"),
    ({"num_hidden_layers": "2"}, "num_hidden_layers '2' integer"),
    ({"vocab_size": 0}, "vocab_size 0 integer"),
    ({"max_position_embeddings": None}, "max_position_embeddings None integer"),
]


@pytest.mark.parametrize(("fields", "shown"), WRONG, ids=str)
def test_an_unknown_configuration_is_refused_by_field(fields: dict[str, Any], shown: str) -> None:
    raw = {field: value for field, value in (TINY | fields).items() if value is not None}
    assert_refused(lambda: parse_config(raw), shown.split(), UnsupportedModel)


def test_the_older_and_the_newer_spelling_of_rope_give_one_configuration() -> None:
    scaling = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    older = parse_config(
        TINY | {"rope_theta": 5e5, "rope_scaling": scaling | {"rope_type": "llama3"}}
    )
    oldest = parse_config(TINY | {"rope_theta": 5e5, "rope_scaling": scaling | {"type": "llama3"}})
    bare = {field: value for field, value in TINY.items() if field != "rope_theta"}
    newer = parse_config(
        bare | {"rope_parameters": scaling | {"rope_type": "llama3", "rope_theta": 5e5}}
    )
    assert older == oldest == newer
    assert (newer.rope_theta, newer.rope_scaling) == (5e5, RopeScaling(8.0, 1.0, 4.0, 64))


def test_rope_without_scaling_may_be_absent_null_or_default() -> None:
    plain = parse_config(TINY)
    assert plain.rope_scaling is None
    assert parse_config(TINY | {"rope_scaling": None}) == plain
    assert (
        parse_config(TINY | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}})
        == plain
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"model_type": "llama"}, (False, False, False, 4)),
        ({"model_type": "llama", "attention_bias": True}, (True, True, False, 4)),
        ({"model_type": "mistral", "sliding_window": None}, (False, False, False, 4)),
        (
            {"model_type": "mistral", "sliding_window": None, "head_dim": 12},
            (False, False, False, 12),
        ),
        ({"model_type": "qwen2"}, (True, False, False, 4)),
        ({"model_type": "qwen3"}, (False, False, True, 128)),
        ({"model_type": "qwen3", "head_dim": 16}, (False, False, True, 16)),
    ],
)
def test_each_family_has_its_biases_norms_and_head_size(
    fields: dict[str, Any], expected: tuple[bool, bool, bool, int]
) -> None:
    config = parse_config(TINY | fields)
    assert (config.qkv_bias, config.output_bias, config.qk_norm, config.head_dim) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"model_type": "mistral", "sliding_window": 40}, (40, "sliding_window")),
        ({"model_type": "mistral", "sliding_window": None}, (256, "max_position_embeddings")),
        ({"model_type": "mistral", "sliding_window": 4096}, (256, "max_position_embeddings")),
        (
            {"model_type": "mistral", "max_position_embeddings": 32768},
            (4096, "sliding_window"),
        ),  # transformers' default window
        (
            {"model_type": "qwen2", "sliding_window": 40, "use_sliding_window": False},
            (256, "max_position_embeddings"),
        ),
        (
            {"model_type": "qwen2", "sliding_window": 40, "use_sliding_window": True},
            (40, "sliding_window"),
        ),
        (
            {"model_type": "qwen3", "sliding_window": 40, "use_sliding_window": True},
            (40, "sliding_window"),
        ),
        ({"model_type": "llama"}, (256, "max_position_embeddings")),
    ],
)
def test_a_sliding_window_limits_the_positions(
    fields: dict[str, Any], expected: tuple[int, str]
) -> None:
    config = parse_config(TINY | fields)
    assert (config.max_positions, config.limited_by.split()[-1]) == expected


@pytest.mark.parametrize(
    ("fields", "most", "field"),
    [
        ({"model_type": "mistral", "sliding_window": 40}, 40, "sliding_window"),
        ({}, 256, "max_position_embeddings"),
    ],
)
def test_a_session_longer_than_the_model_is_refused_and_one_as_long_works(
    tmp_path: Path, fields: dict[str, Any], most: int, field: str
) -> None:
    directory = write_checkpoint(tmp_path, **fields)
    assert loaded(directory, positions=most).cos.shape[0] == most
    shown = [str(most), str(most + 1), field]
    assert_refused(lambda: loaded(directory, positions=most + 1), shown)


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        (None, 2, {2}),
        ({"eos_token_id": 7}, 2, {2, 7}),
        ({"eos_token_id": [7, 9]}, [2, 9], {2, 7, 9}),
        ({"eos_token_id": 0}, None, {0}),
        ({"eos_token_id": None}, 2, {2}),
        ({"temperature": 0.6}, 2, {2}),
        (None, None, set()),
    ],
)
def test_the_ends_of_a_text_are_those_of_both_files_together(
    generation: dict[str, Any] | None,
    config: int | list[int] | None,
    expected: set[int],
    tmp_path: Path,
) -> None:
    directory = write_checkpoint(tmp_path, eos_token_id=config)
    if generation is not None:
        (directory / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    assert read_config(directory).stop_ids == expected


def test_a_directory_without_config_is_refused(tmp_path: Path) -> None:
    assert_refused(lambda: read_config(tmp_path), ["no config.json"], UnsupportedModel)


def test_a_checkpoint_loads_with_every_tensor_as_written(tmp_path: Path) -> None:
    written = load_file(write_checkpoint(tmp_path) / "model.safetensors")
    read = loaded(tmp_path).state_dict()
    assert read.keys() == written.keys()
    assert all(torch.equal(read[name], tensor) for name, tensor in written.items())


def test_the_wanted_type_replaces_the_checkpoints(tmp_path: Path) -> None:
    decoder = loaded(write_checkpoint(tmp_path), dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in decoder.parameters()} == {torch.bfloat16}
    assert decoder.cos.dtype == torch.float32


KEY, NORM = "model.layers.1.self_attn.k_proj.weight", "model.norm.weight"
ZEROS = torch.zeros(16)
SPOILT: list[tuple[dict[str, Tensor | None], list[str]]] = [
    ({KEY: None}, [KEY, "(1 in all)"]),
    ({"lm_head.weight": None}, ["lm_head.weight"]),
    ({NORM: torch.ones(17)}, [NORM, "(17,)", "(16,)"]),
    *(
        ({name: ZEROS}, [f"tensor {name} ", "llama"])
        for name in (
            "model.layers.0.self_attn.q_proj.bias",
            "model.layers.2.mlp.up_proj.weight",
            "model.layers.0.mlp.gate.weight",
        )
    ),
]


@pytest.mark.parametrize(("change", "shown"), SPOILT, ids=str)
def test_a_tensor_that_lacks_does_not_fit_or_would_be_ignored_is_named(
    tmp_path: Path, change: dict[str, Tensor | None], shown: list[str]
) -> None:
    rewrite(write_checkpoint(tmp_path), **change)
    assert_refused(lambda: loaded(tmp_path), shown, UnsupportedModel)


def test_files_that_are_no_safetensors_or_lack_are_named(tmp_path: Path) -> None:
    whole = write_checkpoint(tmp_path) / "model.safetensors"
    shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    index = {"weight_map": {"model.norm.weight": shards[0], "lm_head.weight": shards[1]}}
    whole.rename(tmp_path / "pytorch_model.bin")
    assert_refused(lambda: loaded(tmp_path), ["no model.safetensors"], UnsupportedModel)
    (tmp_path / "pytorch_model.bin").rename(tmp_path / shards[0])
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    assert_refused(lambda: weight_files(tmp_path), [shards[1]], UnsupportedModel)
    (tmp_path / "model.safetensors.index.json").unlink()
    whole.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert_refused(lambda: loaded(tmp_path), ["model.safetensors"], UnsupportedModel)


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path)
    shown = ["62 ids", "vocab_size is 61"]
    assert_refused(lambda: loaded(directory, vocabulary=62), shown, UnsupportedModel)


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("file", "at"), [("model.safetensors", 20), ("model.safetensors", -1), ("config.json", 30)]
)
def test_a_changed_byte_changes_the_fingerprint(file: str, at: int, tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path)
    before = fingerprint(directory)
    assert fingerprint(directory) == before
    flip(directory / file, at)
    assert fingerprint(directory) != before


def test_other_weights_of_one_shape_have_another_fingerprint(tmp_path: Path) -> None:
    assert fingerprint(write_checkpoint(tmp_path / "a", seed=1)) != fingerprint(
        write_checkpoint(tmp_path / "b", seed=2)
    )
    assert fingerprint(write_checkpoint(tmp_path / "c", seed=1)) == fingerprint(tmp_path / "a")


HUGE: dict[str, tuple[int, str]] = {
    "num_hidden_layers": (10**6, "num_hidden_layers 1000000 2"),
    "hidden_size": (2**30, "model.embed_tokens.weight 16) 1073741824)"),
    "intermediate_size": (2**30, "gate_proj.weight (24, (1073741824,"),
    "vocab_size": (2**30, "model.embed_tokens.weight (61, (1073741824,"),
    "head_dim": (2**30, "q_proj.weight (16, (4294967296,"),
    "num_attention_heads": (2**30, "heads 0"),
}


@pytest.mark.parametrize("field", HUGE)
def test_a_size_that_the_tensors_do_not_have_is_refused_before_anything_is_built(
    field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, words = HUGE[field]
    directory = write_checkpoint(tmp_path)
    raw = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(raw | {field: size}))
    monkeypatch.setattr(Decoder, "__init__", lambda *_: pytest.fail("a decoder was built"))
    assert_refused(lambda: loaded(directory), words.split(), UnsupportedModel)
