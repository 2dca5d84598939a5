"""Checkpoints: each tensor and file of a directory is used as the transformers library uses it, or
refused by its name.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from inference.backends.libraries.transformers_loading import load_transformers
from inference.errors import UnsupportedModel
from inference.model.checkpoints.config import (
    RopeScaling,
    parse_config,
    read_config,
    read_raw_config,
)
from inference.model.checkpoints.library_config import read_library_config
from inference.model.checkpoints.weight_files import (
    fingerprint,
    stored_type,
    unread_files,
    weight_files,
)
from inference.model.decoder import Decoder
from tests.support.models import TINY, loaded, write_checkpoint
from tests.support.refusals import assert_refused

HEAD, EMBEDDINGS = "lm_head.weight", "model.embed_tokens.weight"
KEY, NORM = "model.layers.1.self_attn.k_proj.weight", "model.norm.weight"
SHARDS = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
INDEX = "model.safetensors.index.json"
Change = Callable[[dict[str, Tensor]], object]
refused = partial(assert_refused, error=UnsupportedModel)


def rewritten(directory: Path, change: Change) -> Path:
    """The checkpoint after a change of its tensors."""
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"format": "pt"})
    return directory


def put(**tensors: Tensor) -> Change:
    return lambda all_tensors: all_tensors.update(tensors)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "mixtral"}, "model_type 'mixtral'"),
    ({"model_type": None}, "model_type None"),
    ({"num_experts": 8}, "num_experts 8 mixtures"),
    ({"num_local_experts": 4}, "num_local_experts 4 mixtures"),
    ({"n_routed_experts": 64}, "n_routed_experts 64 mixtures"),
    ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
    ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config {'quant_method'"),
    ({"layer_types": ["full_attention", "linear"]}, "layer_types ['linear']"),
    ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling.rope_type 'yarn'"),
    ({"rope_parameters": {"rope_type": "longrope"}}, "rope_parameters.rope_type 'longrope'"),
    (
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}},
        "rope_parameters.partial_rotary_factor 0.25",
    ),
    ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "rope_parameters layer"),
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
    refused(lambda: parse_config(raw), shown.split())


def test_each_spelling_of_rope_gives_one_configuration() -> None:
    llama3 = RopeScaling(8.0, 1.0, 4.0, 64)
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 64
    bare = {field: value for field, value in TINY.items() if field != "rope_theta"}
    newer = parse_config(
        bare | {"rope_parameters": scaling | {"rope_type": "llama3", "rope_theta": 5e5}}
    )
    assert (newer.rope_theta, newer.rope_scaling) == (5e5, llama3)
    for spelling in ("rope_type", "type"):
        older = {"rope_theta": 5e5, "rope_scaling": scaling | {spelling: "llama3"}}
        assert parse_config(TINY | older) == newer
    plain = parse_config(TINY)
    assert plain.rope_scaling is None
    assert parse_config(TINY | {"rope_scaling": None}) == plain
    default = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    assert parse_config(TINY | default) == plain


WINDOW, WHOLE = "sliding_window", "max_position_embeddings"


@pytest.mark.parametrize(
    ("family", "fields", "most", "field"),
    [
        ("mistral", {"sliding_window": 40}, 40, WINDOW),
        ("mistral", {"sliding_window": None}, 256, WHOLE),
        ("mistral", {"sliding_window": 4096}, 256, WHOLE),
        ("mistral", {"max_position_embeddings": 32768}, 4096, WINDOW),  # transformers' default
        ("qwen2", {"sliding_window": 40, "use_sliding_window": False}, 256, WHOLE),
        ("qwen2", {"sliding_window": 40, "use_sliding_window": True}, 40, WINDOW),
        ("qwen3", {"sliding_window": 40, "use_sliding_window": True}, 40, WINDOW),
        ("llama", {}, 256, WHOLE),
    ],
)
def test_a_session_is_as_long_as_the_model_or_its_sliding_window_allows(
    family: str, fields: dict[str, Any], most: int, field: str, tmp_path: Path
) -> None:
    directory = write_checkpoint(tmp_path, model_type=family, head_dim=4, **fields)
    if most <= 256:
        assert loaded(directory, positions=most).cos.shape[0] == most
    shown = [str(most), str(most + 1), field]
    assert_refused(lambda: loaded(directory, positions=most + 1), shown)


def test_the_ends_of_a_text_are_those_of_both_files_together(tmp_path: Path) -> None:
    refused(lambda: read_config(tmp_path), ["no config.json"])
    for generation, config, expected in (
        (None, None, set()),
        (None, 2, {2}),
        ({"eos_token_id": 7}, 2, {2, 7}),
        ({"eos_token_id": [7, 9]}, [2, 9], {2, 7, 9}),
        ({"eos_token_id": 0}, None, {0}),
        ({"eos_token_id": None}, 2, {2}),
        ({"temperature": 0.6}, 2, {2}),
    ):
        write_checkpoint(tmp_path, eos_token_id=config)
        if generation is not None:
            (tmp_path / "generation_config.json").write_text(json.dumps(generation))
        assert read_config(tmp_path).stop_ids == expected


OTHER_HEAD = {HEAD: torch.randn(61, 16)}
FREQUENCIES = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(2)}


def the_same_head(tensors: dict[str, Tensor]) -> None:
    tensors[HEAD] = tensors[EMBEDDINGS].clone()


def narrowed(*, head: bool, to: torch.dtype = torch.bfloat16) -> Change:
    """Tensors of another type: the head, or all but the head."""
    return lambda tensors: tensors.update(
        {name: tensor.to(to) for name, tensor in tensors.items() if (name == HEAD) is head}
    )


def shards_beside_a_whole_file(directory: Path) -> Path:
    """The shards are of another model."""
    write_checkpoint(directory)
    write_checkpoint(directory / "other", seed=2)
    tensors = load_file(directory / "other" / "model.safetensors")
    shutil.rmtree(directory / "other")
    for number, shard in enumerate(SHARDS):
        save_file(dict(list(tensors.items())[number::2]), directory / shard, {"format": "pt"})
    where = {name: SHARDS[at % 2] for at, name in enumerate(tensors)}
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return directory


Write = Callable[[Path], Path]
IS_VERSION_4 = version("transformers").startswith("4.")


def written(change: Change, **fields: Any) -> Write:
    return lambda directory: rewritten(write_checkpoint(directory, **fields), change)


@pytest.mark.parametrize(
    ("write", "dtype", "tied"),
    [
        pytest.param(
            written(put(**OTHER_HEAD), tie_word_embeddings=True),
            torch.float32,
            False,
            marks=pytest.mark.skipif(IS_VERSION_4, reason="transformers 4 ties all heads"),
        ),
        (written(the_same_head, tie_word_embeddings=True), torch.float32, True),
        (written(narrowed(head=True), dtype="float32"), torch.float32, False),
        (written(narrowed(head=False), torch_dtype="bfloat16"), torch.bfloat16, False),
        (written(put(), dtype="bfloat16"), torch.bfloat16, False),  # narrower than stored
        (written(put(**FREQUENCIES), dtype="float32"), torch.float32, False),
        (shards_beside_a_whole_file, torch.float32, False),
    ],
    ids=["other head", "same head", "narrow head", "wide head", "narrow", "frequencies", "shards"],
)
def test_both_backends_have_the_tensors_that_transformers_loads(
    write: Write, dtype: torch.dtype, tied: bool, tmp_path: Path
) -> None:
    directory = write(tmp_path)
    expected = AutoModelForCausalLM.from_pretrained(directory, dtype="auto").state_dict()
    own = dict(loaded(directory).named_parameters())
    own.setdefault(HEAD, own[EMBEDDINGS])
    library = load_transformers(
        directory,
        read_library_config(directory),
        rows=1,
        capacity=32,
        max_nodes=4,
        vocabulary=61,
        dtype=None,
        device=torch.device("cpu"),
    ).library.state_dict()
    assert own.keys() == expected.keys() == library.keys()
    for name, tensor in expected.items():
        assert tensor.dtype == dtype
        assert torch.equal(own[name], tensor), name
        assert torch.equal(library[name], tensor), name
    assert parse_config(read_raw_config(directory)).tied is tied  # an artefact is built from it


def test_the_type_is_the_wanted_one_or_that_of_most_bytes(tmp_path: Path) -> None:
    decoder = loaded(write_checkpoint(tmp_path), dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in decoder.parameters()} == {torch.bfloat16}
    assert decoder.cos.dtype == torch.float32
    assert stored_type(rewritten(tmp_path, narrowed(head=False, to=torch.float16))) == "float16"


MISFITS: list[tuple[dict[str, int], Change, str]] = [
    ({}, lambda tensors: tensors.pop(KEY), f"{KEY} (1 in all)"),
    ({}, lambda tensors: tensors.pop(HEAD), HEAD),
    ({}, put(**{NORM: torch.ones(17)}), f"{NORM} (17,) (16,)"),
    ({}, narrowed(head=True, to=torch.int8), f"{HEAD} 'I8'"),
    *(
        ({}, put(**{name: torch.zeros(16)}), f"tensor {name} llama")
        for name in (
            "model.layers.0.self_attn.q_proj.bias",
            "model.layers.2.mlp.up_proj.weight",
            "model.layers.0.mlp.gate.weight",
        )
    ),
    ({"num_hidden_layers": 10**6}, put(), "num_hidden_layers 1000000 2"),
    ({"hidden_size": 2**30}, put(), "model.embed_tokens.weight 16) 1073741824)"),
    ({"intermediate_size": 2**30}, put(), "gate_proj.weight (24, (1073741824,"),
    ({"vocab_size": 2**30}, put(), "model.embed_tokens.weight (61, (1073741824,"),
    ({"head_dim": 2**30}, put(), "q_proj.weight (16, (4294967296,"),
    ({"num_attention_heads": 2**30}, put(), "heads 0"),
]


@pytest.mark.parametrize(("fields", "change", "shown"), MISFITS)
def test_tensors_that_do_not_fit_are_named_and_sizes_before_anything_is_built(
    fields: dict[str, int],
    change: Change,
    shown: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = rewritten(write_checkpoint(tmp_path), change)
    raw = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(raw | fields))
    if fields:
        monkeypatch.setattr(Decoder, "__init__", lambda *_: pytest.fail("a decoder was built"))
    refused(lambda: loaded(directory), shown.split())


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    assert unread_files(shards_beside_a_whole_file(tmp_path / "shards")) == SHARDS
    write_checkpoint(tmp_path, dtype="float64")
    refused(lambda: loaded(tmp_path), ["dtype is 'float64'", "--dtype"])
    whole = write_checkpoint(tmp_path) / "model.safetensors"
    refused(lambda: loaded(tmp_path, vocabulary=62), ["62 ids", "vocab_size is 61"])
    (tmp_path / "adapter_config.json").write_text("{}")
    refused(lambda: loaded(tmp_path), ["adapter_config.json", "merge"])
    (tmp_path / "adapter_config.json").unlink()
    whole.rename(tmp_path / "pytorch_model.bin")
    refused(lambda: loaded(tmp_path), ["no model.safetensors"])
    (tmp_path / "pytorch_model.bin").rename(tmp_path / SHARDS[0])
    index = {"weight_map": {NORM: SHARDS[0], HEAD: SHARDS[1]}}
    (tmp_path / INDEX).write_text(json.dumps(index), encoding="utf-8")
    refused(lambda: weight_files(tmp_path), [SHARDS[1]])
    (tmp_path / INDEX).unlink()
    whole.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    refused(lambda: loaded(tmp_path), ["model.safetensors"])


def test_a_fingerprint_changes_with_any_byte_of_weights_and_config(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "a")
    before = fingerprint(directory)
    assert fingerprint(directory) == before == fingerprint(write_checkpoint(tmp_path / "b"))
    assert fingerprint(write_checkpoint(tmp_path / "c", seed=2)) != before
    for file, at in (("model.safetensors", 20), ("model.safetensors", -1), ("config.json", 30)):
        content = bytearray((directory / file).read_bytes())
        content[at] ^= 1
        (directory / file).write_bytes(bytes(content))
        assert fingerprint(directory) != before
        content[at] ^= 1
        (directory / file).write_bytes(bytes(content))
