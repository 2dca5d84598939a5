"""A grammar over the tokens of tests/support/scripted_models.py, each of which is a character; and
what scripts say where a rule excludes what they would have said.
"""

from __future__ import annotations

import json
import string

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, pre_tokenizers

from inference.backends import Segment
from inference.sampling import Grammar, GrammarKind, SamplingParams
from inference.text.grammar import Grammars
from inference.tree.token_tree import IntArray

CHARACTERS = '{}":,[] ' + string.ascii_lowercase[:-1] + "012345"
END = len(CHARACTERS)

SCHEMA = {
    "type": "array",
    "minItems": 20,
    "items": {
        "type": "object",
        "properties": {
            "name": {"enum": ["ab", "abc", "ca", "dab"]},
            "count": {"type": "integer"},
            "next": {"type": "boolean"},
        },
        "required": ["name", "count", "next"],
        "additionalProperties": False,
    },
}
RULED = SamplingParams(grammar=Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)))
"""Greedy sampling of a text with far more tokens than a test makes."""


def scripted_grammars() -> Grammars:
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    letters = [level.pre_tokenize_str(one)[0][0] for one in CHARACTERS]
    rules = tokenizers.Tokenizer(
        models.BPE(vocab={one: at for at, one in enumerate(letters)}, merges=[])
    )
    rules.pre_tokenizer = level
    rules.decoder = decoders.ByteLevel()
    rules.add_special_tokens(["<|end|>"])
    return Grammars(rules.to_str(), END + 1, [END])


def allowed_at(segment: Segment, kinds: int) -> NDArray[np.bool_]:  # [p, kinds]
    """Which tokens the segment's rule allows at each picked node."""
    allowed = None if segment.rule is None else segment.rule().allowed
    return np.array([allowed_ids(allowed, node, kinds) for node in range(len(segment.pick))])


def allowed_ids(allowed: IntArray | None, node: int, kinds: int) -> NDArray[np.bool_]:  # [kinds]
    """Which tokens a rule's set of each node allows at this one."""
    if allowed is None:
        return np.ones(kinds, dtype=np.bool_)
    bits = np.unpackbits(allowed[node].view(np.uint8), bitorder="little")
    return bits[:kinds].astype(np.bool_)


def nearest(token: int, allowed: NDArray[np.bool_]) -> int:
    """The token itself, else the next one in a circle that is allowed."""
    if allowed[token]:
        return token
    return (token + int(np.roll(allowed, -token).argmax())) % len(allowed)
