"""Which features a target's graphs return: those of layers that are named, or that a head reads."""

from __future__ import annotations

import re

from compile.compile_options import CompileOptions
from inference.model.config import ModelConfig
from inference.model.eagle_config import EAGLE3, named_layers, read_head_config

_NAMED = re.compile(rf"{EAGLE3}|[0-9]{{1,9}}(,[0-9]{{1,9}})*")


def feature_layers(options: CompileOptions, config: ModelConfig) -> tuple[int, ...]:
    """The layers of --features, ascending; none without it.

    Raises InvalidRequest for a layer that the target does not have, and UnsupportedModel for a head
    that does not fit it.
    """
    if options.features is None:
        return ()
    if _NAMED.fullmatch(options.features):
        return named_layers(options.features, config.layers)
    from inference.model.checkpoint import find_model

    return read_head_config(find_model(options.features, weights=False), config).kept
