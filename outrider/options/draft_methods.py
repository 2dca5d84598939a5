"""Models that draft, by name: `--draft NAME`. To add one, add its row, and its file in
outrider/draft_methods.
"""

from __future__ import annotations

from typing import NamedTuple


class MethodEntry(NamedTuple):
    """One kind of model that drafts."""

    help: str  # what it is, in a few words
    here: bool = True  # whether it also drafts on a client's machine, away from the target


METHODS = {
    "model": MethodEntry("a smaller model of the target's family"),
    "block": MethodEntry("a draft that names several tokens in one call (PARD's format)"),
    "gguf": MethodEntry("the same as a GGUF file, computed by llama.cpp"),
    "eagle": MethodEntry("an EAGLE-3 head, which reads what its target has computed", here=False),
    "substitute": MethodEntry("the target's own layers with 4-bit weights"),
}
"""Every method that loads a model. A client has one of them at most."""

COPY = "copy"
"""The source that loads nothing: what followed the same words before."""

_HERE = ", ".join(name for name, method in METHODS.items() if method.here)
_BESIDE = ", ".join(name for name, method in METHODS.items() if not method.here)
SOURCES_HELP = (
    f"where candidates come from: a kind of model ({_HERE}; beside the target {_BESIDE}; "
    f"docs/runs.md), and {COPY} (what followed the same words before); none copies alone"
)
"""The help of --draft."""
