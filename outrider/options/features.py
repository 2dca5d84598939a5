"""Flags of a head on a client's machine, which reads features of its target over the wire."""

from __future__ import annotations

from pydantic import model_validator
from typing_extensions import Self

from outrider.options.draft_methods import METHODS
from outrider.options.group import Group
from outrider.options.groups import SourceOptions, TreeOptions
from outrider.options.values import Count, Layers


class FeatureOptions(Group, title="drafting"):
    feature_bytes_per_second: Count = 2_000_000
    """--draft eagle: bytes a second of the target's features on the link; of a target: that a
    session may have at most"""


class HeadOptions(FeatureOptions, SourceOptions, TreeOptions, title="drafting"):
    """For clients, whose draft may be a head."""

    @model_validator(mode="after")
    def _features_come_on_the_way(self) -> Self:
        reads = self.method is not None and METHODS[self.method].reads_target
        if self.given(FeatureOptions) and not reads:
            raise ValueError("--feature_bytes_per_second is what --draft eagle may take: give both")
        if reads and self.waits:
            raise ValueError(
                f"--draft {self.draft} reads what comes while the target goes on, "
                f"{self.rounds_flag} makes rounds: give one of them"
            )
        return self


class FeatureServingOptions(FeatureOptions):
    features: Layers | None = None
    """give clients that ask the inputs of these layers, for --draft eagle on their machines, such
    as 2,16,29; eagle3: the three that EAGLE-3 reads (default: none)"""

    @model_validator(mode="after")
    def _bytes_of_features(self) -> Self:
        if self.features is None and self.given(FeatureOptions):
            raise ValueError("--feature_bytes_per_second bounds what --features gives: give both")
        return self
