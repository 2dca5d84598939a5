"""outrider/keywords.py, made from flags and parameters: `python -m tests.support.keywords >
outrider/keywords.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import NoneType
from typing import get_args, get_origin

from inference.flags.group import Flag, Group, flags_of
from outrider.options.network import ObservingOptions
from outrider.options.roles import Role, SharedClientRole, TargetRole
from outrider.text.prompts import Parameters

_HEAD = '''"""Keyword arguments of the Python interface, for editors and type checkers. Made by
`python -m tests.support.keywords > outrider/keywords.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict
'''


def module() -> str:
    """The whole module."""
    own = {"target", "target_host", "draft", "draft_model"}  # arguments of connect()
    of_process = {"end_with_input", *flags_of(ObservingOptions)}  # of a target's own process
    text = {field.name: str(field.type) for field in fields(Parameters)}
    parts = [
        _typed("TextKeywords", "Parameters of a text: see outrider.Parameters.", text),
        _typed(
            "ConnectKeywords",
            "Options of outrider.connect(): flags of `outrider serve` (docs/flags.md).",
            _flags(SharedClientRole, own),
        ),
        _typed(
            "ServeKeywords",
            "Options of outrider.serve(): flags of `outrider target` (docs/flags.md).",
            _flags(TargetRole, {"model", *of_process}),
        ),
    ]
    return _HEAD + "".join(parts)


def _typed(name: str, about: str, kinds: Mapping[str, str]) -> str:
    lines = [f"    {field}: {kind}" for field, kind in kinds.items()]
    head = f'class {name}(TypedDict, total=False):\n    """{about}"""\n\n'
    return "\n\n" + head + "\n".join(lines) + "\n"


def _flags(model: type[Group], but: set[str]) -> dict[str, str]:
    """The types of a role's flags by name, without those of every command and those in `but`."""
    left_out = {"role", *flags_of(Role), *but}
    return {name: _kind(flag) for name, flag in flags_of(model).items() if name not in left_out}


def _kind(flag: Flag) -> str:
    """A flag's type as source."""
    optional = " | None" if NoneType in get_args(flag.field.annotation) else ""
    if flag.choices:
        named = [f'"{choice}"' for choice in flag.choices]
        shown = f"Literal[{', '.join(named)}]{optional}"
        if len(flag.name) + len(shown) < 90:
            return shown
        choices = ", ".join(named)  # laid out as ruff does
        return (
            f"(\n        Literal[\n            {choices}\n        ]\n        |{optional[2:]}\n    )"
        )
    if get_origin(flag.kind) is tuple:
        return f"Sequence[{get_args(flag.kind)[0].__name__}]{optional}"
    return flag.kind.__name__ + optional


if __name__ == "__main__":
    print(module(), end="")
