"""Logits of a model after each prefix, computed once however often it is asked: all arms of a
study share prefixes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inference.model.cache import KeysValues
from inference.model.decoder import Decoder

EMPTY = 0
"""The prefix without tokens."""

_AT_ONCE = 128  # prefixes in one forward
_FIRST_ROOM = 4096
_MASK = 2**64 - 1


class Prefixes:
    """Numbered prefixes with the logits after them; a longer prefix has a greater number than the
    shorter ones that it begins with.

    Keys and values are kept by prefix, so each costs one node of a forward. Logits do not depend on
    what else was asked, or when, beyond float32's rounding, and are always the same once they were
    computed.
    """

    def __init__(self, decoder: Decoder) -> None:
        config = decoder.config
        self.vocabulary = decoder.vocabulary
        self._decoder = decoder
        self._children: dict[tuple[int, int], int] = {}
        self._tokens, self._parents, self._depths, self._keys = [-1], [-1], [0], [0]
        self._computed: list[bool] = [True]  # of the empty prefix there are no logits and no keys
        self._cache = torch.zeros(_FIRST_ROOM, 2 * config.layers, config.kv_heads * config.head_dim)
        self._logits = torch.zeros(_FIRST_ROOM, decoder.vocabulary)

    def child(self, prefix: int, token: int) -> int:
        """The prefix that goes on with this token."""
        number = self._children.setdefault((prefix, token), len(self._tokens))
        if number == len(self._tokens):
            key = (self._keys[prefix] ^ (token + 1)) * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03
            self._tokens.append(token)
            self._parents.append(prefix)
            self._depths.append(self._depths[prefix] + 1)
            self._keys.append(key & _MASK)
            self._computed.append(False)
        return number

    def length(self, prefix: int) -> int:
        """Tokens in it, which is also the position of the token after it."""
        return self._depths[prefix]

    def key(self, prefix: int) -> int:
        """64 bits that depend on its tokens only."""
        return self._keys[prefix]

    def logits(self, prefixes: Sequence[int]) -> Tensor:  # [n, vocabulary] float32
        """Logits of the model after each of these, none of which is empty."""
        missing = self._missing(prefixes)
        for start in range(0, len(missing), _AT_ONCE):
            self._compute(missing[start : start + _AT_ONCE])
        return self._logits[torch.tensor(prefixes)]

    def _missing(self, prefixes: Sequence[int]) -> list[int]:
        """The prefixes, and beginnings of prefixes, that were never computed; ascending."""
        found: set[int] = set()
        for prefix in prefixes:
            while not self._computed[prefix] and prefix not in found:
                found.add(prefix)
                prefix = self._parents[prefix]
        return sorted(found)

    @torch.no_grad()
    def _compute(self, missing: list[int]) -> None:
        """One forward pass for prefixes whose beginnings are computed, or among them."""
        seen = [EMPTY, *self._beginnings(missing)]
        mask = torch.from_numpy(self._sees([*seen, *missing])[len(seen) :].astype(np.int32))[None]
        context, tree, nodes = mask[:, :, : len(seen)], mask[:, :, len(seen) :], missing
        if len(missing) == 1:  # one node runs as two: alone it would round differently
            nodes = [*missing, *missing]
            context, tree = context.expand(1, 2, -1), torch.eye(2, dtype=torch.int32)[None]
        past = KeysValues.of(self._cache[torch.tensor(seen)].transpose(0, 1)[:, None].unbind())
        tokens, depths = ([[own[node] for node in nodes]] for own in (self._tokens, self._depths))
        positions = torch.tensor(depths, dtype=torch.int32) - 1
        inputs = torch.tensor(tokens, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
        out = self._decoder(*inputs, positions, context, tree, None, past)
        self._make_room()
        places = torch.tensor(missing)
        made = torch.cat(out.new.tensors)  # [2 * layers, n, width]
        self._cache[places] = made.transpose(0, 1)[: len(missing)]
        self._logits[places] = self._decoder.logits(out.states)[0, : len(missing)]
        for prefix in missing:
            self._computed[prefix] = True

    def _beginnings(self, prefixes: Sequence[int]) -> list[int]:
        """All that these begin with and that are none of them; ascending."""
        found, own = set(), set(prefixes)
        for prefix in prefixes:
            at = self._parents[prefix]
            while at != EMPTY and at not in found:
                found.add(at)
                at = self._parents[at]
        return sorted(found - own)

    def _sees(self, prefixes: Sequence[int]) -> NDArray[np.bool_]:  # [n, n]
        """Which of these each one begins with, itself included. Beginnings stand before; the empty
        prefix is first, and no other one sees it.
        """
        place = {prefix: index for index, prefix in enumerate(prefixes)}
        sees = np.eye(len(prefixes), dtype=np.bool_)
        for index, prefix in enumerate(prefixes):
            if parent := place.get(self._parents[prefix], 0):
                sees[index, :index] |= sees[parent, :index]
        return sees

    def _make_room(self) -> None:
        while len(self._tokens) > len(self._logits):
            self._cache = torch.cat([self._cache, torch.zeros_like(self._cache)])
            self._logits = torch.cat([self._logits, torch.zeros_like(self._logits)])
