"""Models that draft, by name: `--draft NAME`. To add one, add its row, and its file in
outrider/draft_methods.
"""

from __future__ import annotations

from typing import NamedTuple


class DraftMethod(NamedTuple):
    """One kind of model that drafts."""

    help: str  # what it is, in a few words
    here: bool = True  # whether it also drafts on a client's machine, away from the target


METHODS = {
    "model": DraftMethod("a smaller model of the target's family"),
    "block": DraftMethod("a draft that names several tokens in one call (PARD's format)"),
    "gguf": DraftMethod("the same as a GGUF file, computed by llama.cpp"),
    "eagle": DraftMethod("an EAGLE-3 head, which reads what its target has computed", here=False),
    "substitute": DraftMethod("the target's own layers with 4-bit weights"),
}
"""Every method that loads a model. A client has one of them at most."""

COPY = "copy"
"""The source that loads nothing: what followed the same words before."""
