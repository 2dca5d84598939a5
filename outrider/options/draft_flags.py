"""Flags of drafting: kinds of draft models, sources of candidates, fixed trees, and presets.

To add a kind of draft model, add a row to METHODS and a file to outrider/draft_methods. To add a
preset, add a row to PRESETS, and use the preset in the architecture that measures it
(ARCHITECTURES in outrider/measure/run.py).
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, TypeAlias

from pydantic import AfterValidator, Field

from inference.errors import InvalidRequest, require
from inference.flags.group import Alias, Group, Metavar
from inference.flags.values import Count, Natural
from inference.model.checkpoints.hub import is_gguf
from outrider.options.groups import DraftModelOptions


class MethodEntry(NamedTuple):
    """A kind of draft model."""

    help: str  # a short description
    local: bool = True  # whether it can run on a client's machine


METHODS = {
    "model": MethodEntry("a smaller model of the target's family"),
    "eagle": MethodEntry("an EAGLE-3 head, which reads the target's hidden states", local=False),
    "substitute": MethodEntry("the target's own layers with 4-bit weights"),
}
"""Kinds of draft models by name. A client uses at most one kind."""

COPY, BESIDE, NONE = "copy", "beside", "none"
"""Sources that need no model on this machine: text that followed the same words earlier, the draft
on the target's device, and nothing.
"""

DEFAULT_SOURCES = "model,copy"

_HERE = ", ".join(name for name, method in METHODS.items() if method.local)
_THERE = ", ".join(name for name, method in METHODS.items() if not method.local)
SOURCES_HELP = (
    f"what proposes tokens: a kind of model ({_HERE}; {_THERE} only for fused_target) or {BESIDE} "
    f"(a draft on the target's device, if any), {COPY} (text that followed the same words "
    f"earlier), or both, as in {DEFAULT_SOURCES}; or {NONE} (docs/runs.md)"
)
"""The help text of --draft."""


def _sources(text: str) -> str:
    names = text.split(",")
    models = [name for name in names if name != COPY]
    sources = {*METHODS, BESIDE} | ({NONE} if len(names) == 1 else set())
    if not set(models) <= sources or len(models) > 1 or len(set(names)) < len(names):
        raise ValueError(
            f"one of {', '.join((*METHODS, BESIDE))}, or {COPY}, or both, or {NONE} is needed"
        )
    return text


Sources: TypeAlias = Annotated[str, AfterValidator(_sources), Metavar("SOURCE,...")]


class TreeOptions(Group, title="drafting"):
    """The shape of the draft's proposals, if the target waits for them."""

    gamma: Annotated[Natural, Alias("speculation_length")] | None = None
    """number of draft tokens, one after the other, that the target waits for in each round"""
    tree_nodes: Count | None = None
    """nodes of the tree that the target waits for in each round (default with --tree_depth: 16)"""
    tree_depth: Count | None = None
    """depth of the tree that the target waits for in each round (default with --tree_nodes: 6)"""

    @property
    def waits(self) -> bool:
        """Whether the target waits for a whole tree before each forward pass."""
        return bool(self.changed(TreeOptions))


class SourceOptions(Group, title="drafting"):
    """The sources of candidates: a draft model, copied text, a draft beside the target, or none."""

    draft: Annotated[Sources, Field(description=SOURCES_HELP)] = DEFAULT_SOURCES

    @property
    def method(self) -> str | None:
        """The kind of draft model, a key of METHODS; None without a draft model."""
        return next((name for name in self.draft.split(",") if name in METHODS), None)

    @property
    def copies(self) -> bool:
        """Whether earlier text is copied."""
        return COPY in self.draft.split(",")

    @property
    def beside(self) -> bool:
        """Whether the draft on the target's device is used."""
        return BESIDE in self.draft.split(",")

    @property
    def drafts_here(self) -> bool:
        """Whether anything on this machine proposes tokens."""
        return self.method is not None or self.copies


def method_of(options: DraftModelOptions) -> str:
    """Return the kind of draft model, a key of METHODS; `model` if the options name none."""
    return (options.method if isinstance(options, SourceOptions) else None) or "model"


def check_method(options: DraftModelOptions) -> None:
    """Raise MissingExtra, with the install command, if the draft needs a missing package."""
    extra = "gguf" if is_gguf(options.draft_name or "") else "torch"
    require(extra, f"--draft {method_of(options)}", otherwise=f"; --draft {COPY} needs no model")


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
"""The flags that each preset sets."""

SIZES = ("gamma", "tree_nodes", "tree_depth")
"""Flags for which an explicit value replaces the preset's value."""


def _preset(name: str) -> str:
    if name not in PRESETS:
        raise ValueError(f"one of {', '.join(PRESETS)} is needed")
    return name


Preset: TypeAlias = Annotated[str, AfterValidator(_preset), Metavar("NAME")]


class PresetOptions(SourceOptions, TreeOptions, title="drafting"):
    """A client's drafting method: a preset, or separate flags."""

    preset: Preset | None = None
    """named drafting method: vanilla, classic_sd, tree_sd, adaptive, suffix, hybrid, eagle_sd or
    subspec_sd (docs/runs.md)"""

    def __init__(self, /, **values: Any) -> None:
        """Add the preset's flags. Raises InvalidRequest if another flag contradicts the preset."""
        preset = values.get("preset")
        preset_flags = PRESETS.get(preset, {}) if isinstance(preset, str) else {}
        flags = " ".join(f"--{name} {value}" for name, value in preset_flags.items())
        missing = {name: value for name, value in preset_flags.items() if values.get(name) is None}
        for name in ("draft", *SIZES) if preset_flags else ():
            value = values.get(name)
            same = name in preset_flags and (name in SIZES or value == preset_flags[name])
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
