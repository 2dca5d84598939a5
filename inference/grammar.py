"""Grammars of a tokenizer, compiled by llguidance: the one module that knows it."""

from __future__ import annotations

from collections.abc import Sequence

from inference.sampling import SamplingParams
from inference.token_rule import TokenRule


class Grammars:
    """The grammars of a target's or a draft's tokenizer. Any thread may call it.

    vocabulary: ids that the tokenizer knows; no other id is ever allowed.
    stop_ids: all that may follow a complete text.
    """

    def __init__(self, tokenizer_json: str, vocabulary: int, stop_ids: Sequence[int]) -> None:
        raise NotImplementedError

    def rule(self, prompt: Sequence[int], params: SamplingParams) -> TokenRule | None:
        """Return the rule of a text; None where nothing adjusts its logits.

        The first text with a grammar compiles it. Raises InvalidRequest for a grammar that cannot
        be compiled, or that the prompt's last `made` tokens break.
        """
        raise NotImplementedError
