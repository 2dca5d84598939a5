"""A draft that now and then has no idea: at some prefixes the target's own token is none of its
guesses, however many it makes.

Noise alone hardly ever does that to a vocabulary of 512, and large vocabularies do it to every
draft.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks.regret.pair import PrefixModel
from benchmarks.regret.prefixes import Prefixes
from inference.sampling import SamplingParams

_SALT = 372
"""Chosen so that the share comes out alike on all texts of the study."""

_WORD = 2**64
_OUT_OF_REACH = 50.0
"""Below the least logit; more than sampling's noise makes up for."""


class MissingModel(PrefixModel):
    """A PrefixModel that misses after this share of all prefixes; which ones depends on their
    tokens alone. There it shares out among the others what it would have given the target's token.
    """

    def __init__(self, prefixes: Prefixes, noise: float, share: float) -> None:
        super().__init__(prefixes, noise)
        self._share, self._target = share, PrefixModel(prefixes, 0.0)

    def logits_under(self, prefixes: Sequence[int], params: SamplingParams) -> Tensor:
        said = super().logits_under(prefixes, params)
        missed = [index for index, prefix in enumerate(prefixes) if self._misses(prefix)]
        if missed:
            tokens = self._target.choices([prefixes[index] for index in missed], params)
            least = said[missed].amin(-1) - _OUT_OF_REACH
            said[missed, torch.from_numpy(tokens).long()] = least
        return said

    def _misses(self, prefix: int) -> bool:
        return _mixed((self._prefixes.key(prefix) + _SALT) % _WORD) < self._share * _WORD


def _mixed(key: int) -> int:
    """64 bits, evenly spread, whatever keys are asked for (the last steps of SplitMix64)."""
    key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9 % _WORD
    key = (key ^ (key >> 27)) * 0x94D049BB133111EB % _WORD
    return key ^ (key >> 31)
