"""Types of the values that flags take, with their bounds."""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeAlias, get_args

from annotated_types import Ge, Gt, Le
from pydantic import AfterValidator

from inference.cost.billing import read_knob
from outrider.options.draft_methods import COPY, METHODS
from outrider.options.group import Shown

DEVICES = ("auto", "cpu", "cuda", "neuron", "neuron-legacy")


def is_device(name: str) -> bool:
    """Whether the name can be a --device: one of DEVICES, or cuda:N."""
    return name in DEVICES or re.fullmatch(r"cuda:\d{1,3}", name) is not None


def _device(name: str) -> str:
    if not is_device(name):
        raise ValueError(f"one of {', '.join(DEVICES)} or cuda:N is needed")
    return name


def _knob(position: str) -> str:
    if not 0 <= read_knob(position) <= 1:
        raise ValueError("tps, balanced, cost or 0 to 100 is needed")
    return position


def _sources(text: str) -> str:
    if text == "none":
        return COPY
    named = text.split(",")
    methods = [name for name in named if name != COPY]
    if not set(methods) <= set(METHODS) or len(methods) > 1 or len(set(named)) < len(named):
        raise ValueError(f"one of {', '.join(METHODS)}, {COPY}, both, or none are needed")
    return text


File: TypeAlias = Annotated[str, Shown("FILE")]
Directory: TypeAlias = Annotated[str, Shown("DIR")]
ModelName: TypeAlias = Annotated[str, Shown("DIR_OR_NAME")]
Name: TypeAlias = Annotated[str, Shown("NAME")]
Host: TypeAlias = Annotated[str, Shown("HOST")]
Device: TypeAlias = Annotated[str, AfterValidator(_device), Shown("DEVICE")]
Knob: TypeAlias = Annotated[str, AfterValidator(_knob), Shown("KNOB")]
Sources: TypeAlias = Annotated[str, AfterValidator(_sources), Shown("SOURCE,...")]
Count: TypeAlias = Annotated[int, Ge(1)]
Natural: TypeAlias = Annotated[int, Ge(0)]
Port: TypeAlias = Annotated[int, Ge(0), Le(65535), Shown("PORT")]
Seconds: TypeAlias = Annotated[float, Ge(0), Shown("SECONDS")]
Usd: TypeAlias = Annotated[float, Ge(0), Shown("USD")]
Watts: TypeAlias = Annotated[float, Ge(0), Shown("WATTS")]
Price: TypeAlias = Annotated[float, Gt(0), Shown("USD")]
Share: TypeAlias = Annotated[float, Gt(0), Le(1)]
Precision = Literal["float32", "bfloat16", "float16"]

PrecisionChoice: TypeAlias = Annotated[
    Literal["float32", "bfloat16", "float16", "auto"] | None,
    AfterValidator(lambda given: None if given == "auto" else given),
]
"""A Precision; None, also for auto, where outrider/models/precision.py picks one."""

Quantization = Literal["int8", "int4"]
PRECISIONS: tuple[str, ...] = get_args(Precision)
Objective = Literal[
    "total_cost", "api_cost", "energy_total", "draft_energy", "target_energy", "latency"
]
