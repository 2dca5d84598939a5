"""The rules of a target's texts, as far as its model can follow them."""

from __future__ import annotations

from collections.abc import Sequence

from inference.backends import Model
from inference.errors import InvalidRequest
from inference.grammar import Grammars
from inference.sampling import SamplingParams
from inference.token_rule import TokenRule


def check_ids(ids: Sequence[int], vocabulary: int) -> None:
    """Raise InvalidRequest for an id that the tokenizer does not know."""
    if len(ids) and not 0 <= min(ids) <= max(ids) < vocabulary:
        outside = next(token for token in ids if not 0 <= token < vocabulary)
        raise InvalidRequest(f"token id {outside} is outside the vocabulary of {vocabulary}")


class Rules:
    """Makes rules for a model. grammars: None where no text may have one."""

    def __init__(self, model: Model, vocabulary: int, grammars: Grammars | None) -> None:
        self._masks, self._vocabulary, self._grammars = model.masks, vocabulary, grammars

    def make(self, prompt: Sequence[int], params: SamplingParams) -> TokenRule | None:
        """Return the rule of a text; None where nothing adjusts its logits.

        Raises InvalidRequest for a rule that cannot be made, or that the model cannot follow.
        """
        if params.made >= len(prompt):
            raise InvalidRequest(
                f"{params.made} tokens of a prompt of {len(prompt)} are output: it begins with at "
                "least one that is not"
            )
        if params.needs_rule and not self._masks:
            raise InvalidRequest(
                "this target takes no grammar, penalties or biases, and reports no "
                "log-probabilities: its graphs are built for it by `outrider compile --masks`"
            )
        if params.grammar is not None and self._grammars is None:
            raise InvalidRequest("this target was started without a tokenizer: it takes no grammar")
        check_ids([token for token, _ in params.logit_bias], self._vocabulary)
        if self._grammars is not None:
            return self._grammars.rule(prompt, params)
        return TokenRule(prompt, params, None) if params.adjusts else None
