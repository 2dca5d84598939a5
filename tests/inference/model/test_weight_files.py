"""Every tensor and file of a directory is used as the transformers library uses it, or refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from inference.backends.libraries.transformers_loading import load_transformers
from inference.errors import UnsupportedModel
from inference.model.checkpoints.config import parse_config, read_raw_config
from inference.model.checkpoints.library_config import read_library_config
from inference.model.checkpoints.weight_files import stored_type, unread_files
from tests.support.models import loaded, write_checkpoint
from tests.support.refusals import assert_refused

HEAD, EMBEDDINGS = "lm_head.weight", "model.embed_tokens.weight"
SHARDS = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]


def rewritten(directory: Path, change: Callable[[dict[str, Tensor]], object]) -> Path:
    """The checkpoint after a change of its tensors."""
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"format": "pt"})
    return directory


def another_head(directory: Path) -> Path:
    return write_checkpoint(directory, tie_word_embeddings=True) and rewritten(
        directory, lambda tensors: tensors.update({HEAD: torch.randn(61, 16)})
    )


def the_same_head(directory: Path) -> Path:
    return write_checkpoint(directory, tie_word_embeddings=True) and rewritten(
        directory, lambda tensors: tensors.update({HEAD: tensors[EMBEDDINGS].clone()})
    )


def a_narrow_head(directory: Path) -> Path:
    return write_checkpoint(directory, dtype="float32") and rewritten(
        directory, lambda tensors: tensors.update({HEAD: tensors[HEAD].bfloat16()})
    )


def a_wide_head(directory: Path) -> Path:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors.update({name: one.bfloat16() for name, one in tensors.items() if name != HEAD})

    return rewritten(write_checkpoint(directory, torch_dtype="bfloat16"), change)


def narrower_than_stored(directory: Path) -> Path:
    return write_checkpoint(directory, dtype="bfloat16")


def frequencies(directory: Path) -> Path:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    return rewritten(
        write_checkpoint(directory, dtype="float32"),
        lambda tensors: tensors.update({name: torch.zeros(2)}),
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
    index = json.dumps({"metadata": {}, "weight_map": where})
    (directory / "model.safetensors.index.json").write_text(index)
    return directory


@pytest.mark.parametrize(
    ("write", "dtype"),
    [
        (another_head, torch.float32),
        (the_same_head, torch.float32),
        (a_narrow_head, torch.float32),
        (a_wide_head, torch.bfloat16),
        (narrower_than_stored, torch.bfloat16),
        (frequencies, torch.float32),
        (shards_beside_a_whole_file, torch.float32),
    ],
)
def test_both_backends_have_the_tensors_that_transformers_loads(
    write: Callable[[Path], Path], dtype: torch.dtype, tmp_path: Path
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


def test_without_a_type_in_config_json_that_of_most_bytes_is_taken(tmp_path: Path) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors.update({name: one.half() for name, one in tensors.items() if name != HEAD})

    assert stored_type(rewritten(write_checkpoint(tmp_path), change)) == "float16"


def test_weights_of_integers_another_type_and_an_adapter_are_refused(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, dtype="float64")
    assert_refused(lambda: loaded(directory), ["dtype is 'float64'", "--dtype"], UnsupportedModel)
    write_checkpoint(tmp_path)
    rewritten(directory, lambda tensors: tensors.update({HEAD: tensors[HEAD].to(torch.int8)}))
    assert_refused(lambda: loaded(directory), [HEAD, "'I8'"], UnsupportedModel)
    (directory / "adapter_config.json").write_text("{}")
    assert_refused(lambda: loaded(directory), ["adapter_config.json", "merge"], UnsupportedModel)


def test_files_of_other_weights_are_named(tmp_path: Path) -> None:
    assert unread_files(shards_beside_a_whole_file(tmp_path)) == SHARDS


def test_what_an_artefact_is_built_from_says_that_the_head_is_not_tied(tmp_path: Path) -> None:
    assert not parse_config(read_raw_config(another_head(tmp_path / "other"))).tied
    assert parse_config(read_raw_config(the_same_head(tmp_path / "same"))).tied
