"""Which features a target's graphs return: those of layers that are named, or that a head reads."""

from __future__ import annotations

import re

from compile.compile_options import CompileOptions
from inference.errors import InvalidRequest
from inference.model.config import ModelConfig
from inference.model.eagle_config import LEAST_LAYERS, read_head_config, usual_layers

EAGLE3 = "eagle3"
"""The name of the layers that EAGLE-3 reads, as of a target's --features."""


def feature_layers(options: CompileOptions, config: ModelConfig) -> tuple[int, ...]:
    """The layers of --features, ascending; none without it.

    The number of layers stands for the last layer's output. Raises InvalidRequest for a layer that
    the target does not have, and UnsupportedModel for a head that does not fit it.
    """
    given = options.features
    if given is None:
        return ()
    if given == EAGLE3:
        if config.layers < LEAST_LAYERS:
            raise InvalidRequest(
                f"--features {EAGLE3} needs a target of {LEAST_LAYERS} layers or more, this one "
                f"has {config.layers}: name layers"
            )
        return usual_layers(config.layers)
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", given):
        return _read_by(given, config)
    layers = tuple(sorted({int(part) for part in given.split(",")}))
    if layers[-1] > config.layers:
        raise InvalidRequest(
            f"--features {given}: the target has {config.layers} layers, so 0 to {config.layers} "
            f"are taken ({config.layers} is what leaves the last one)"
        )
    return layers


def _read_by(head: str, config: ModelConfig) -> tuple[int, ...]:
    from inference.model.checkpoint import find_model

    return read_head_config(find_model(head, weights=False), config).kept
