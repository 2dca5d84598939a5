"""Which features a target's graphs return: those of layers that are named, or that a head reads."""

from __future__ import annotations

import re

from compile.compile_options import CompileOptions
from inference.model.config import ModelConfig
from inference.model.eagle_config import EAGLE3, named_layers, read_head_config
from inference.model.hub import find_model

_NUMBERS = re.compile(r"[0-9]{1,9}(,[0-9]{1,9})*")


def names_layers(given: str) -> bool:
    """Whether --features names layers itself, and no head that reads them."""
    return given == EAGLE3 or _NUMBERS.fullmatch(given) is not None


def feature_layers(options: CompileOptions, config: ModelConfig) -> tuple[int, ...]:
    """The layers of --features, ascending; none without it.

    Raises InvalidRequest for a layer that the target does not have, and UnsupportedModel for a head
    that does not fit it.
    """
    given = options.features
    if given is None:
        return ()
    if names_layers(given):
        return named_layers(given, config.layers)
    return read_head_config(find_model(given, weights=False), config).kept
