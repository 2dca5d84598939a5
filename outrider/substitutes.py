"""Verb substitute: writes a 4-bit copy of a target."""

from __future__ import annotations

from pathlib import Path

from inference.command import say
from outrider.models import find_checkpoint
from outrider.options.roles import SubstituteRole
from outrider.status_lines import LoadingStatus


def make_substitute(options: SubstituteRole) -> int:
    """Write the copy, or what is missing of it. Returns 0."""
    from inference.model.low_bit_files import write_low_bit

    checkpoint, out = find_checkpoint(options.model, "target"), Path(options.copy_to)
    with LoadingStatus(checkpoint.name) as tell:
        write_low_bit(checkpoint.directory, checkpoint.name, out, tell)
    before, after = (_bytes(directory) for directory in (checkpoint.directory, out))
    say(
        f"{out}: a 4-bit copy of {checkpoint.name}, {after / 1e9:.2f} GB for {before / 1e9:.2f}; "
        f"draft with --draft substitute --draft_model {out}"
    )
    return 0


def _bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.safetensors"))
