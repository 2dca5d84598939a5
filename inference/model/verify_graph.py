"""The graphs that are compiled: the Decoder with the choice inside, for one bucket's fixed shapes.

`VerifyGraph` reads the caches and returns new keys and values for its caller to write (CPU, CUDA).
Neuron's `StatefulGraph` writes them out of place and reassigns its buffers.

Both have one set of inputs. Without the sampling inputs a graph is greedy; with them it serves any
mixture of rows. A `StatefulGraph` that is given `rows` alone copies rows of its caches. It is the
same module because graphs of one package share state and signature.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from inference.artifact import Bucket
from inference.model.arithmetic import ENGINES, HOST
from inference.model.decoder import Decoder, Hidden
from inference.model.sampler import Sampling, choose_greedy, choose_mixed

_Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]
"""Tokens, positions, context mask, tree mask and pick, in this order. Pick is None for all
nodes.
"""


class _Graph(nn.Module):
    """A Decoder, its caches and the choice.

    keys, values: [layers, rows, kv heads, capacity + 1, head dim]

    A bucket reads the first `bucket.slots` slots.
    """

    keys: Tensor
    values: Tensor

    arithmetic = HOST

    def __init__(self, decoder: Decoder, keys: Tensor, values: Tensor, levels: int) -> None:
        super().__init__()
        self.decoder, self.levels = decoder, levels
        self.register_buffer("keys", keys, persistent=False)
        self.register_buffer("values", values, persistent=False)

    def _run(
        self,
        inputs: _Inputs,
        rows: Tensor | None,
        sampling: Sampling | None,
        first: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return chosen [B, P] int32, then new keys and new values [layers, B, kv heads, T, head
        dim].
        """
        tokens, positions, context_mask, tree_mask, pick = inputs
        out: Hidden = self.decoder(
            tokens, rows, positions, context_mask, tree_mask, pick, self.keys, self.values
        )
        logits = self.decoder.logits(out.states)
        if sampling is None:
            return choose_greedy(logits), out.keys, out.values
        after = positions_after(positions, pick, first, self.levels)
        chosen = choose_mixed(logits, sampling, after, self.levels, self.arithmetic)
        return chosen, out.keys, out.values


def positions_after(
    positions: Tensor, pick: Tensor | None, first: Tensor | None, levels: int
) -> Tensor:  # [B, T] -> [B, P]
    """Return positions of the tokens that are chosen at the picked nodes.

    pick: [B, P] int32; None for all nodes
    first: [B, 1] int32, the least position of a node whose choice is used. Other nodes may lie
        anywhere: they are taken to lie within `levels` positions from there on.
    """
    if pick is not None:
        return torch.gather(positions, 1, pick) + 1
    if first is None:
        return positions + 1
    return torch.minimum(torch.maximum(positions, first), first + (levels - 1)) + 1


def sampling_of(
    temperature: Tensor | None, top_k: Tensor | None, top_p: Tensor | None, seed: Tensor | None
) -> Sampling | None:
    """Return a graph's sampling inputs together; None where they are left out: the graph is
    greedy.
    """
    if temperature is None or top_k is None or top_p is None or seed is None:
        return None
    return Sampling(temperature, top_k, top_p, seed)


class VerifyGraph(_Graph):
    """A graph that reads the caches. Its caller writes the new keys and values at `slots`."""

    def forward(
        self,
        tokens: Tensor,  # [B, T] int32
        rows: Tensor,  # [B] int32, the cache row of each
        slots: Tensor,  # [B, T] int32, where the new keys belong
        positions: Tensor,  # [B, T] int32
        context_mask: Tensor,  # [B, 1, S] int32 0/1
        tree_mask: Tensor,  # [B, T, T] int32 0/1
        pick: Tensor,  # [B, P] int32, the nodes to choose at
        temperature: Tensor | None = None,  # [B] float32
        top_k: Tensor | None = None,  # [B] int32
        top_p: Tensor | None = None,  # [B] float32
        seed: Tensor | None = None,  # [B, 2] int32
    ) -> tuple[Tensor, Tensor, Tensor]:
        inputs = (tokens, positions, context_mask, tree_mask, pick)
        return self._run(inputs, rows, sampling_of(temperature, top_k, top_p, seed))


class StatefulGraph(_Graph):
    """A graph that reassigns its caches and returns chosen [B, P] alone.

    Without `pick` it chooses at every node. A gather of all nodes would have an index of its
    source's shape, which compilers for Neuron have got wrong.

    Every row of the cache takes part in every call, in its order. Given `rows` alone, row i becomes
    what row `rows[i]` was. Otherwise `rows` is ignored.
    """

    arithmetic = ENGINES

    def forward(
        self,
        rows: Tensor,
        tokens: Tensor | None = None,
        slots: Tensor | None = None,
        positions: Tensor | None = None,
        context_mask: Tensor | None = None,
        tree_mask: Tensor | None = None,
        pick: Tensor | None = None,
        first: Tensor | None = None,  # [B, 1] int32, see positions_after()
        temperature: Tensor | None = None,
        top_k: Tensor | None = None,
        top_p: Tensor | None = None,
        seed: Tensor | None = None,
    ) -> Tensor:
        if (
            tokens is None
            or slots is None
            or positions is None
            or context_mask is None
            or tree_mask is None
        ):
            return self._copied(rows)
        inputs = (tokens, positions, context_mask, tree_mask, pick)
        chosen, self.keys, self.values = self._written(
            inputs, slots, sampling_of(temperature, top_k, top_p, seed), first
        )
        return chosen

    def _written(
        self,
        inputs: _Inputs,
        slots: Tensor,
        sampling: Sampling | None,
        first: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return chosen [B, P] int32, and the caches with the new keys and values in their
        slots.
        """
        assert slots.shape[0] == self.keys.shape[1], (
            f"{slots.shape[0]} rows in a call, {self.keys.shape[1]} in the cache"
        )
        chosen, keys, values = self._run(inputs, None, sampling, first)
        index = slots[None, :, None, :, None].expand(keys.shape)
        return (
            chosen,
            torch.scatter(self.keys, 3, index, keys),
            torch.scatter(self.values, 3, index, values),
        )

    def _copied(self, rows: Tensor) -> Tensor:
        """Copy rows of the caches. A graph must return something: the result [rows] means
        nothing.
        """
        self.keys, self.values = self.keys.index_select(1, rows), self.values.index_select(1, rows)
        return rows + rows


def copy_inputs(rows: int) -> dict[str, Tensor]:
    """Return inputs, by parameter name, that copy every row of a StatefulGraph to itself."""
    return {"rows": torch.arange(rows, dtype=torch.int32)}


def example_inputs(bucket: Bucket) -> dict[str, Tensor]:
    """Return the inputs of an idle call of this bucket, by parameter name.

    Every node is written to the junk slot and sees itself.
    """
    rows, nodes = bucket.rows, bucket.nodes
    inputs = {
        "tokens": torch.zeros(rows, nodes, dtype=torch.int32),
        "rows": torch.arange(rows, dtype=torch.int32),
        "slots": torch.full((rows, nodes), bucket.junk, dtype=torch.int32),
        "positions": torch.zeros(rows, nodes, dtype=torch.int32),
        "context_mask": torch.zeros(rows, 1, bucket.slots, dtype=torch.int32),
        "tree_mask": torch.eye(nodes, dtype=torch.int32).repeat(rows, 1, 1),
        "pick": torch.zeros(rows, bucket.picks, dtype=torch.int32),
    }
    if bucket.sampled:
        inputs |= {
            "temperature": torch.zeros(rows),
            "top_k": torch.zeros(rows, dtype=torch.int32),
            "top_p": torch.ones(rows),
            "seed": torch.zeros(rows, 2, dtype=torch.int32),
        }
    return inputs


def stateful_inputs(bucket: Bucket) -> dict[str, Tensor]:
    """Return the inputs of an idle call of a StatefulGraph: without `pick` where all are picked,
    with `first` where it is sampled then.
    """
    inputs = example_inputs(bucket)
    if bucket.picks == bucket.nodes:
        del inputs["pick"]
        if bucket.sampled:
            inputs["first"] = torch.zeros(bucket.rows, 1, dtype=torch.int32)
    return inputs
