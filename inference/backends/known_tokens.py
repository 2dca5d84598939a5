"""Lets a draft propose tokens for a target with a larger vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from inference.backends import Chosen, Model, Ranked, Segment


class KnownTokens:
    """A Model that replaces ids outside the draft's vocabulary by 0, so that the draft can continue
    after such tokens.

    limit: size of the draft's vocabulary
    """

    def __init__(self, model: Model, limit: int) -> None:
        self._model, self._known = model, limit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        return self._model.choose([self._readable(segment) for segment in segments])

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        return self._model.rank([self._readable(segment) for segment in segments], k)

    def _readable(self, segment: Segment) -> Segment:
        valid = segment.tokens < self._known
        return segment._replace(tokens=np.where(valid, segment.tokens, 0).astype(np.int32))
