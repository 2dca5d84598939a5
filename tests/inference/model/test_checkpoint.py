"""Checkpoints: what is read, and that everything which would be computed wrongly is refused by
the name of its field.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)
from safetensors.torch import load_file, save_file

from inference.errors import InvalidRequest, UnsupportedModel
from inference.model.checkpoint import fingerprint, load_decoder, weight_files
from inference.model.config import RopeScaling, parse_config, read_config
from inference.model.decoder import Decoder
from inference.model.hub import find_model
from tests.support.models import TINY, write_checkpoint

CPU = torch.device("cpu")


def load(directory: Path, positions: int = 64, vocabulary: int = 61) -> Decoder:
    return load_decoder(
        directory, positions=positions, vocabulary=vocabulary, dtype=None, device=CPU
    )


def rewrite(directory: Path, **changes: torch.Tensor | None) -> Path:
    """The checkpoint with these tensors put in, or left out where None."""
    path = directory / "model.safetensors"
    tensors = load_file(path) | changes
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)
    return directory


# --- configurations
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model_type": "mixtral"}, "model_type is 'mixtral'"),
        ({"model_type": "gemma2"}, "model_type is 'gemma2'"),
        ({"model_type": None}, "model_type is None"),
        ({"num_experts": 8}, "num_experts is 8: mixtures of experts"),
        ({"num_local_experts": 4}, "num_local_experts is 4: mixtures of experts"),
        ({"n_routed_experts": 64}, "n_routed_experts is 64: mixtures of experts"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config is .*gptq"),
        (
            {"layer_types": ["full_attention", "linear_attention"]},
            r"layer_types names \['linear_attention'\]",
        ),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling.rope_type is 'yarn'"),
        (
            {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
            "rope_scaling.rope_type is 'dynamic'",
        ),
        (
            {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}},
            "rope_parameters.rope_type is 'longrope'",
        ),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}},
            "rope_parameters.partial_rotary_factor is 0.25",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e6}}},
            "rope_parameters differs from layer to layer",
        ),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor is None: a number"),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            "rope_scaling.original_max_position_embeddings is None: an integer",
        ),
        ({"hidden_size": None}, "hidden_size is None: an integer from 1 to "),
        ({"num_hidden_layers": "2"}, "num_hidden_layers is '2': an integer from 1 to "),
        ({"vocab_size": 0}, "vocab_size is 0: an integer from 1 to "),
        (
            {"max_position_embeddings": None},
            "max_position_embeddings is None: an integer from 1 to ",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_configuration_that_would_be_computed_wrongly_is_refused_by_its_field(
    fields: dict[str, Any], words: str
) -> None:
    raw = {field: value for field, value in (TINY | fields).items() if value is not None}
    with pytest.raises(UnsupportedModel, match=words):
        parse_config(raw)


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
    assert (config.max_positions, config.limited_by) == expected


def test_a_session_longer_than_the_sliding_window_is_refused_and_a_shorter_one_works(
    tmp_path: Path,
) -> None:
    directory = write_checkpoint(tmp_path, model_type="mistral", sliding_window=40)
    assert load(directory, positions=40).cos.shape[0] == 40
    with pytest.raises(
        InvalidRequest,
        match=r"41 .*40.*"
        r"\(config.json field sliding_window\)",
    ):
        load(directory, positions=41)


def test_a_session_longer_than_the_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"257 .*256 .*max_position_embeddings"):
        load(write_checkpoint(tmp_path), positions=257)


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        (None, {2}),
        ({"eos_token_id": 7}, {7}),
        ({"eos_token_id": [7, 9]}, {7, 9}),
        ({"eos_token_id": 0}, {0}),
        ({"temperature": 0.6}, {2}),
    ],
)
def test_the_ids_that_end_a_text_are_those_of_the_generation_config(
    generation: dict[str, Any] | None, expected: set[int], tmp_path: Path
) -> None:
    directory = write_checkpoint(tmp_path)
    if generation is not None:
        (directory / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    assert read_config(directory).stop_ids == expected


def test_a_model_without_an_end_id_has_none(tmp_path: Path) -> None:
    assert read_config(write_checkpoint(tmp_path, eos_token_id=None)).stop_ids == frozenset()


def test_a_directory_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"no config\.json"):
        read_config(tmp_path)


# --- weights
# --------------------------------------------------------------------------------------------------


def test_a_checkpoint_loads_with_every_tensor_as_written(tmp_path: Path) -> None:
    written = load_file(write_checkpoint(tmp_path) / "model.safetensors")
    loaded = load(tmp_path).state_dict()
    assert loaded.keys() == written.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in written.items())


def test_the_wanted_type_replaces_the_checkpoints(tmp_path: Path) -> None:
    decoder = load_decoder(
        write_checkpoint(tmp_path), positions=64, vocabulary=61, dtype=torch.bfloat16, device=CPU
    )
    assert {parameter.dtype for parameter in decoder.parameters()} == {torch.bfloat16}
    assert decoder.cos.dtype == torch.float32


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    with pytest.raises(
        UnsupportedModel,
        match=r"model\.layers\.1\.self_attn\.k_proj\.weight.*\(1 in all\)",
    ):
        load(rewrite(tmp_path, **{"model.layers.1.self_attn.k_proj.weight": None}))


def test_an_untied_model_without_its_head_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"lm_head\.weight"):
        load(rewrite(write_checkpoint(tmp_path), **{"lm_head.weight": None}))


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.2.mlp.up_proj.weight",
        "model.layers.0.mlp.gate.weight",
    ],
)
def test_a_tensor_that_would_be_ignored_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=f"tensor {re.escape(name)} .*llama"):
        load(rewrite(write_checkpoint(tmp_path), **{name: torch.zeros(16)}))


def test_a_tensor_of_another_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    with pytest.raises(
        UnsupportedModel,
        match=r"model\.norm\.weight.*\(17,\).*\(16,\)",
    ):
        load(rewrite(write_checkpoint(tmp_path), **{"model.norm.weight": torch.ones(17)}))


def test_stored_rotary_frequencies_and_a_tied_head_are_passed_over(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, tie_word_embeddings=True)
    rewrite(
        tmp_path,
        **{
            "lm_head.weight": torch.zeros(61, 16),
            "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(2),
        },
    )
    assert load(tmp_path).lm_head is None


def test_weights_in_pickles_only_are_refused(tmp_path: Path) -> None:
    (write_checkpoint(tmp_path) / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match=r"no model\.safetensors"):
        load(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    index = {
        "weight_map": {
            "model.norm.weight": "model-00001-of-00002.safetensors",
            "lm_head.weight": "model-00002-of-00002.safetensors",
        }
    }
    (write_checkpoint(tmp_path) / "model.safetensors").rename(
        tmp_path / "model-00001-of-00002.safetensors"
    )
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(UnsupportedModel, match=r"model-00002-of-00002\.safetensors"):
        weight_files(tmp_path)


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"62 ids.*vocab_size is 61"):
        load(write_checkpoint(tmp_path), vocabulary=62)


def test_a_file_that_is_no_safetensors_is_refused_by_its_name(tmp_path: Path) -> None:
    (write_checkpoint(tmp_path) / "model.safetensors").write_bytes(
        b"version https://git-lfs.github.com/spec/v1\n"
    )
    with pytest.raises(UnsupportedModel, match=r"model\.safetensors"):
        load(tmp_path)


# --- fingerprints
# --------------------------------------------------------------------------------------------------


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


# --- the hub
# --------------------------------------------------------------------------------------------------


def hub_error(kind: type[Exception]) -> Exception:
    """An error as huggingface_hub raises it, whichever HTTP library it carries."""
    error = kind.__new__(kind)
    Exception.__init__(error, "from the hub")
    return error


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (GatedRepoError, "acme/model is gated: accept its licence .*set HF_TOKEN"),
        (
            RepositoryNotFoundError,
            r"acme/model: no such directory, and no such model on the hub "
            r"\(a private one needs HF_TOKEN\)",
        ),
        (
            LocalEntryNotFoundError,
            r"acme/model: no such directory, and the hub cannot be reached to download it "
            r"\(LocalEntryNotFoundError\)",
        ),
        (HfHubHTTPError, "the hub cannot be reached"),
        (ConnectionError, "the hub cannot be reached"),
    ],
)
def test_what_the_hub_refuses_is_said_with_its_remedy(
    kind: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(*_: Any, **__: Any) -> str:
        raise hub_error(kind)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(InvalidRequest, match=words):
        find_model("acme/model")


def test_a_hub_name_is_downloaded_without_pickles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def download(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert find_model("acme/model") == tmp_path
    assert asked["name"] == "acme/model"
    assert "*.safetensors" in asked["allow_patterns"]
    assert not [
        pattern
        for pattern in asked["allow_patterns"]
        if pattern.endswith((".bin", "*", ".pth", ".pt"))
    ]


@pytest.mark.parametrize("name", ["./absent", "/absent/model", "a/b/c"])
def test_a_path_that_is_absent_is_not_asked_of_the_hub(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(*_: Any, **__: Any) -> str:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(InvalidRequest, match=re.escape(name)):
        find_model(name)


def test_a_name_that_is_no_hub_name_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no such directory"):
        find_model("not a model!")


def test_a_directory_is_taken_as_it_is(tmp_path: Path) -> None:
    assert find_model(str(tmp_path)) == tmp_path


# --- sizes that no checkpoint has -------------------------------------------------------------

HUGE: dict[str, tuple[int, str]] = {
    "num_hidden_layers": (
        1_000_000,
        "num_hidden_layers is 1000000, and the tensors are of 2 layers",
    ),
    "hidden_size": (
        2**30,
        "tensor model.embed_tokens.weight has shape (61, 16), config.json says (61, 1073741824)",
    ),
    "intermediate_size": (
        2**30,
        "mlp.gate_proj.weight has shape (24, 16), config.json says (1073741824, 16)",
    ),
    "vocab_size": (
        2**30,
        "tensor model.embed_tokens.weight has shape (61, 16), config.json says (1073741824, 16)",
    ),
    "head_dim": (
        2**30,
        "self_attn.q_proj.weight has shape (16, 16), config.json says (4294967296, 16)",
    ),
    "num_attention_heads": (2**30, "heads have 0 dimensions"),
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
    with pytest.raises(UnsupportedModel, match=re.escape(words)):
        load(directory)
