"""Stand-in for NxD's parallel state and layers: ranks are threads that meet at collectives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves


class Group:
    """The tensor-parallel group in force; collectives are real only while ranks run."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size)
        self.parts: dict[int, dict[int, Tensor]] = {}

    def exchange(self, part: Tensor) -> list[Tensor]:
        """Every rank's part, in order; while tracing one rank stands for all."""
        if getattr(_here, "rank", None) is None:
            return [part] * self.size
        running: Group = _here.group
        _here.step += 1
        running.parts.setdefault(_here.step, {})[_here.rank] = part
        running.barrier.wait(timeout=60)
        parts = running.parts[_here.step]
        return [parts[rank] for rank in range(running.size)]

    def __deepcopy__(self, memo: dict[int, Any]) -> Group:
        return self


_here = threading.local()
_state: list[Group] = []


def current_group() -> Group:
    """Outside a parallel state the real layers act as plain ones, which nobody meant."""
    if not _state:
        raise AssertionError("parallel layers are made within NxDParallelState")
    return _state[-1]


@contextmanager
def as_rank(rank: int, group: Group) -> Iterator[None]:
    _here.rank, _here.group, _here.step = rank, group, 0
    try:
        yield
    except BaseException:
        group.barrier.abort()
        raise
    finally:
        _here.rank = None


def on_ranks(size: int, main: Callable[[int], Any]) -> Any:
    """Run every rank in a thread. Returns what rank 0 returns, and all others with it."""
    group = Group(size)

    def run(rank: int) -> Any:
        with as_rank(rank, group):
            return main(rank)

    with ThreadPoolExecutor(size) as pool:
        outs = list(pool.map(run, range(size)))
    first, *others = (tree_leaves(out) for out in outs)
    for other in others:
        assert all(map(torch.equal, first, other)), "ranks disagree: rank 0's is returned"
    return outs[0]


def assign(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put tensors in the place of the parameters and buffers of these names."""
    for name, tensor in tensors.items():
        owner, _, leaf = name.rpartition(".")
        place = getattr(module.get_submodule(owner), leaf)
        if isinstance(place, nn.Parameter):
            place.data = tensor
        else:
            setattr(module.get_submodule(owner), leaf, tensor)


class NxDParallelState:
    def __init__(
        self, *, world_size: int = 1, tensor_model_parallel_size: int = 1, lnc_size: Any = None
    ) -> None:
        assert world_size == tensor_model_parallel_size, "the fake knows tensor parallelism only"
        self._group = Group(tensor_model_parallel_size)

    def __enter__(self) -> NxDParallelState:
        assert not _state, "parallel states do not nest"
        _state.append(self._group)
        return self

    def __exit__(self, *_: object) -> None:
        _state.pop()


class _Parallel(nn.Module):
    def _divide(self, size: int) -> int:
        self.group = current_group()
        assert size % self.group.size == 0, f"{size} is not divisible by {self.group.size} ranks"
        return size // self.group.size

    def _parameter(
        self, shape: tuple[int, ...], dtype: torch.dtype, axis: int | None, init: Any = None
    ) -> nn.Parameter:
        parameter = nn.Parameter(torch.full(shape, float("nan"), dtype=dtype))
        if init is not None:
            assert isinstance(init(parameter), Tensor), "an init_method returns the tensor"
        parameter.partition_axis = axis  # type: ignore[attr-defined]
        return parameter


class ColumnParallelLinear(_Parallel):
    def __init__(
        self,
        input_size: int,
        output_size: int,
        bias: bool = True,
        gather_output: bool = True,
        dtype: torch.dtype = torch.float32,
        *,
        init_method: Any = None,
    ) -> None:
        super().__init__()
        share = self._divide(output_size)
        self.gather_output = gather_output
        self.weight = self._parameter((share, input_size), dtype, 0, init_method)
        axis = None if gather_output else 0
        shape = (output_size if gather_output else share,)
        self.bias = self._parameter(shape, dtype, axis) if bias else None

    def forward(self, input: Tensor, *_: Any) -> Tensor:  # noqa: A002 (the real one's name)
        assert input.dim() == 3, "[batch, sequence, hidden] is expected"
        out = F.linear(input, self.weight)
        if self.gather_output:
            out = torch.cat(self.group.exchange(out), -1)
        return out if self.bias is None else out + self.bias


class RowParallelLinear(_Parallel):
    def __init__(
        self,
        input_size: int,
        output_size: int,
        bias: bool = True,
        input_is_parallel: bool = False,
        dtype: torch.dtype = torch.float32,
        *,
        init_method: Any = None,
        reduce_dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        assert input_is_parallel, "the fake takes inputs that are divided already"
        self.reduce_dtype = reduce_dtype
        shape = (output_size, self._divide(input_size))
        self.weight = self._parameter(shape, dtype, 1, init_method)
        self.bias = self._parameter((output_size,), dtype, None) if bias else None

    def forward(self, input_: Tensor) -> Tensor:
        assert input_.dim() == 3, "[batch, sequence, hidden] is expected"
        part = F.linear(input_, self.weight)
        parts = self.group.exchange(part.to(self.reduce_dtype))
        whole = torch.stack(parts).sum(0).to(part.dtype)
        return whole if self.bias is None else whole + self.bias


class ParallelEmbedding(_Parallel):
    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        init_method: Any = None,
        dtype: torch.dtype = torch.float32,
        shard_across_embedding: bool = False,
    ) -> None:
        super().__init__()
        assert shard_across_embedding, "dealt out by id, one program for all ranks lacks its rank"
        shape = (num_embeddings, self._divide(embedding_dim))
        self.weight = self._parameter(shape, dtype, 1, init_method)

    def forward(self, input_: Tensor) -> Tensor:
        return torch.cat(self.group.exchange(F.embedding(input_, self.weight)), -1)


def gather_from_tensor_model_parallel_region_with_dim(
    input_: Tensor, gather_dim: int, process_group: Any = None
) -> Tensor:
    return torch.cat((process_group or current_group()).exchange(input_), gather_dim)


def get_tensor_model_parallel_group(as_list: bool = False) -> Group:
    return current_group()


def init_on_device(device: torch.device) -> Any:
    return device  # a context, in which tensors are made on it


def shard_checkpoint(
    checkpoint: dict[str, Tensor],
    model: nn.Module,
    start_rank: int | None = None,
    end_rank: int | None = None,
    *,
    serialize_path: str | None = None,
) -> list[dict[str, Tensor]]:
    """Cuts what the model says is cut; consumes the dictionary that it is given."""
    group = current_group()
    for name in set(checkpoint) - set(model.state_dict()):
        del checkpoint[name]
    parameters, shards = dict(model.named_parameters()), []
    for rank in range(start_rank or 0, (group.size - 1 if end_rank is None else end_rank) + 1):
        shard = {}
        for name, tensor in checkpoint.items():
            axis = getattr(parameters.get(name), "partition_axis", None)
            part = tensor if axis is None else tensor.chunk(group.size, axis)[rank]
            shard[name] = part.contiguous()
        if serialize_path is not None:
            Path(serialize_path).mkdir(parents=True, exist_ok=True)
            save_file(shard, f"{serialize_path}/tp{rank}_sharded_checkpoint.safetensors")
        shards.append(shard)
    checkpoint.clear()
    return shards
