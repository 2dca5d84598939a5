"""Ways of drafting by name: `--preset NAME` stands for the flags of one row of PRESETS. To add one,
add its row, and name it at the architecture that measures it (outrider/compare/arms.py).
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator

from inference.errors import InvalidRequest
from outrider.options.group import Shown
from outrider.options.groups import SourceOptions, TreeOptions

PRESETS: dict[str, dict[str, Any]] = {
    "vanilla": {"target_only": True, "no_beside": True, "pace": "go_on"},
    "classic_sd": {"draft": "model", "gamma": 4},
    "tree_sd": {"draft": "model", "tree_nodes": 16, "tree_depth": 6},
    "adaptive": {"draft": "model", "pace": "go_on"},
    "suffix": {"draft": "copy", "no_beside": True, "pace": "go_on"},
    "hybrid": {"draft": "model,copy", "pace": "go_on"},
    "eagle_sd": {"target_only": True, "pace": "go_on"},
    "subspec_sd": {"draft": "substitute", "pace": "go_on"},
}
"""Every preset: the flags that it stands for."""

SIZES = ("gamma", "tree_nodes", "tree_depth")
"""Flags whose value in a preset is a default: one that is given takes its place."""


def _preset(name: str) -> str:
    if name not in PRESETS:
        raise ValueError(f"one of {', '.join(PRESETS)} is needed")
    return name


Preset: TypeAlias = Annotated[str, AfterValidator(_preset), Shown("NAME")]


class PresetOptions(SourceOptions, TreeOptions, title="drafting"):
    """Who drafts for a client: by name, or flag by flag."""

    preset: Preset | None = None
    """a way of drafting by name: vanilla, classic_sd, tree_sd, adaptive, suffix, hybrid, eagle_sd
    or subspec_sd; it stands for flags (docs/runs.md), and sizes that are given take the place of
    its own"""
    target_only: bool = False
    """load no draft here; a draft beside the target is used where there is one"""
    no_beside: bool = False
    """use no draft beside the target"""

    def __init__(self, /, **given: Any) -> None:
        """The preset's flags stand where none is given. Raises InvalidRequest for a contradiction,
        and says what the preset stands for.
        """
        meant = self._flags_of(given.get("preset"))
        missing = {name: value for name, value in meant.items() if given.get(name) is None}
        try:
            super().__init__(**given | missing)
        except InvalidRequest as error:
            if missing and self._allowed(given | {"preset": None}):
                raise InvalidRequest(f"{_words(given['preset'])}: {error}") from error
            raise
        for name, value in meant.items():
            if name not in SIZES and vars(self)[name] != value:
                raise InvalidRequest(
                    f"{_words(given['preset'])}, got --{name} {given[name]}: give one of them"
                )

    @property
    def stands_for(self) -> dict[str, Any]:
        """The flags that the preset stands for; empty without one."""
        return self._flags_of(self.preset)

    @staticmethod
    def _flags_of(preset: object) -> dict[str, Any]:
        return PRESETS.get(preset, {}) if isinstance(preset, str) else {}

    @classmethod
    def _allowed(cls, given: dict[str, Any]) -> bool:
        try:
            cls(**given)
        except InvalidRequest:
            return False
        return True


def _words(preset: str) -> str:
    """What the preset stands for, as a user writes it."""
    flags = [
        f"--{name}" if value is True else f"--{name} {value}"
        for name, value in PRESETS[preset].items()
    ]
    return f"--preset {preset} stands for {' '.join(flags)}"
