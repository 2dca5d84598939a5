"""Flags that say who drafts, and how: methods, fixed trees, sources, and presets of all of them.

To add a model that drafts, add its row to METHODS, and its file in outrider/draft_methods. To add a
preset, add its row to PRESETS, and name it at the architecture that measures it
(outrider/measure/arms.py).
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, TypeAlias

from pydantic import AfterValidator, Field

from inference.errors import InvalidRequest
from inference.extras import require
from inference.flags.group import Alias, Group, Metavar
from inference.flags.values import Count, Natural
from inference.model.checkpoints.hub import is_gguf
from outrider.options.groups import DraftModelOptions


class MethodEntry(NamedTuple):
    """A kind of draft model."""

    help: str  # a short description
    here: bool = True  # whether it can run on a client's machine
    extra: str = "torch"  # required to run it; empty for none


METHODS = {
    "model": MethodEntry("a smaller model of the target's family"),
    "gguf": MethodEntry("a smaller model in a GGUF file, run by llama.cpp", extra="gguf"),
    "eagle": MethodEntry("an EAGLE-3 head, which reads the target's hidden states", here=False),
    "dflash": MethodEntry("a DFlash head, which proposes a whole tree in one call", here=False),
    "substitute": MethodEntry("the target's own layers with 4-bit weights"),
}
"""The methods that load a model. A client uses at most one."""

COPY, BESIDE, NONE = "copy", "beside", "none"
"""Sources that need no model here: text that followed the same words before, the draft beside the
target, and nothing.
"""

DEFAULT_SOURCES = "model,copy"

_HERE = ", ".join(name for name, method in METHODS.items() if method.here)
_THERE = ", ".join(name for name, method in METHODS.items() if not method.here)
SOURCES_HELP = (
    f"sources of candidates: a kind of model ({_HERE}; at a fused target {_THERE}) or {BESIDE} "
    f"(the draft beside the target, if it has one), {COPY} (text that followed the same words "
    f"before), or both; or {NONE} (docs/runs.md)"
)
"""The help of --draft."""


def _sources(text: str) -> str:
    named = text.split(",")
    models = [name for name in named if name != COPY]
    sources = {*METHODS, BESIDE} | ({NONE} if len(named) == 1 else set())
    if not set(models) <= sources or len(models) > 1 or len(set(named)) < len(named):
        raise ValueError(
            f"one of {', '.join((*METHODS, BESIDE))}, or {COPY}, or both, or {NONE} is needed"
        )
    return text


Sources: TypeAlias = Annotated[str, AfterValidator(_sources), Metavar("SOURCE,...")]


class TreeOptions(Group, title="drafting"):
    """The form of the draft's proposals, and whether the target waits for them."""

    gamma: Annotated[Natural, Alias("speculation_length")] | None = None
    """length of the chain of draft tokens that the target waits for in each round"""
    tree_nodes: Count | None = None
    """nodes of the tree that the target waits for in each round (default with --tree_depth: 16)"""
    tree_depth: Count | None = None
    """depth of the tree that the target waits for in each round (default: 6)"""

    @property
    def waits(self) -> bool:
        """Whether the target waits for a whole tree before each forward pass."""
        return bool(self.changed(TreeOptions))


class SourceOptions(Group, title="drafting"):
    """The sources of candidates."""

    draft: Annotated[Sources, Field(description=SOURCES_HELP)] = DEFAULT_SOURCES

    @property
    def method(self) -> str | None:
        """The kind of model that drafts, a name of METHODS; None without a model."""
        return next((name for name in self.draft.split(",") if name in METHODS), None)

    @property
    def copies(self) -> bool:
        """Whether text is copied."""
        return COPY in self.draft.split(",")

    @property
    def beside(self) -> bool:
        """Whether the draft beside the target takes part."""
        return BESIDE in self.draft.split(",")

    @property
    def drafts_here(self) -> bool:
        """Whether anything on this machine proposes tokens."""
        return self.method is not None or self.copies


def method_of(options: DraftModelOptions) -> str:
    """The kind of model that drafts, a name of METHODS; `model` where the options name none."""
    return (options.method if isinstance(options, SourceOptions) else None) or "model"


def check_method(options: DraftModelOptions) -> None:
    """Raise MissingExtra, with the install line, unless what computes the draft is installed."""
    method = "gguf" if is_gguf(options.draft_name or "") else method_of(options)
    otherwise = f"; --draft {COPY} needs no model"
    if extra := METHODS[method].extra:
        require(extra, f"--draft {method}", otherwise=otherwise)


PRESETS: dict[str, dict[str, Any]] = {
    "vanilla": {"draft": "none"},
    "classic_sd": {"draft": "model", "gamma": 4},
    "tree_sd": {"draft": "model", "tree_nodes": 16, "tree_depth": 6},
    "adaptive": {"draft": "model"},
    "suffix": {"draft": "copy"},
    "hybrid": {"draft": "model,copy"},
    "eagle_sd": {"draft": "beside"},
    "subspec_sd": {"draft": "substitute"},
}
"""Every preset: the flags that it stands for."""

SIZES = ("gamma", "tree_nodes", "tree_depth")
"""Flags whose value in a preset is a default: an explicit value replaces it."""


def _preset(name: str) -> str:
    if name not in PRESETS:
        raise ValueError(f"one of {', '.join(PRESETS)} is needed")
    return name


Preset: TypeAlias = Annotated[str, AfterValidator(_preset), Metavar("NAME")]


class PresetOptions(SourceOptions, TreeOptions, title="drafting"):
    """A client's way of drafting: by a preset's name, or flag by flag."""

    preset: Preset | None = None
    """named drafting method: vanilla, classic_sd, tree_sd, adaptive, suffix, hybrid, eagle_sd or
    subspec_sd (docs/runs.md)"""

    def __init__(self, /, **values: Any) -> None:
        """Add the preset's flags. Raises InvalidRequest for flags that contradict them."""
        preset = values.get("preset")
        meant = PRESETS.get(preset, {}) if isinstance(preset, str) else {}
        flags = " ".join(f"--{name} {value}" for name, value in meant.items())
        missing = {name: value for name, value in meant.items() if values.get(name) is None}
        for name in ("draft", *SIZES) if meant else ():
            value = values.get(name)
            same = name in meant and (name in SIZES or value == meant[name])
            if value is not None and not same:
                raise InvalidRequest(
                    f"--preset {preset} stands for {flags}, got --{name} {value}: give one of them"
                )
        try:
            super().__init__(**values | missing)
        except InvalidRequest as error:
            if any(f"--{name}" in str(error) for name in missing):
                raise InvalidRequest(f"--preset {preset} stands for {flags}: {error}") from error
            raise
