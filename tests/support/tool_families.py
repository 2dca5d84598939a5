"""Chat templates with the marks of families of models, and models that have them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from outrider.models.found_model import EMBEDDED

_TURNS = (
    "{{ bos_token }}{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}{% for m in messages %}"
)
_CALLS = (
    "{% for c in m.tool_calls or [] %}OPEN{{ c.function | tojson }}CLOSE{% endfor %}\n{% endfor %}"
)


def _template(opening: str, closing: str) -> str:
    calls = _CALLS.replace("OPEN", opening).replace("CLOSE", closing)
    return f"{_TURNS}{{{{ m.role }}}}: {{{{ m.content }}}}{calls}"


TEMPLATES = {
    "tagged": _template("<tool_call>", "</tool_call>"),
    "llama": _template("ipython ", ""),
    "mistral": _template("[TOOL_CALLS]", ""),
}
"""Templates that know tools, by the family whose marks they have."""

MARKS = {
    "tagged": {"<tool_call>": False, "</tool_call>": False},
    "llama": {"<|python_tag|>": True},
    "mistral": {"[TOOL_CALLS]": True},
}
"""Tokens that families have for their marks, and whether they are special."""

ADD: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "adds",
        "parameters": {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "y": {"enum": [1, 2]}},
            "required": ["x", "y"],
            "additionalProperties": False,
        },
    },
}
STOP = {"type": "function", "function": {"name": "stop", "parameters": {"type": "object"}}}
"""Two functions, as OpenAI's interface describes them."""


def with_template(directory: Path, family: str, *, marks: bool = False, **config: Any) -> Path:
    """A copy of the embedded target with the template of a family; "" keeps its own.

    marks: the tokenizer has the family's marks as tokens, which the model does not know
    config: fields of config.json that differ
    """
    shutil.copytree(EMBEDDED / "target", directory)
    _change(directory / "config.json", config)
    if not family:
        return directory
    _change(directory / "tokenizer_config.json", {"chat_template": TEMPLATES[family]})
    path = directory / "tokenizer.json"
    raw = json.loads(path.read_text(encoding="utf-8"))
    for place, (mark, special) in enumerate(MARKS[family].items() if marks else ()):
        plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        token = {"id": 512 + place, "content": mark, "special": special}
        raw["added_tokens"].append(token | plain)
    path.write_text(json.dumps(raw), encoding="utf-8")
    return directory


def _change(path: Path, fields: dict[str, Any]) -> None:
    raw = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(raw | fields), encoding="utf-8")
