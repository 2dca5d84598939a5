"""Token rules of sessions: for the target, if its model supports them, and for its draft."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from weakref import WeakKeyDictionary

from inference.backends import Model
from inference.drafters.draft_row import MakeRule, no_rule
from inference.engine.sessions.session import Session
from inference.errors import InvalidRequest
from inference.sampling import SamplingParams
from inference.text.grammar import Grammars
from inference.token_rule import TokenRule, plain_rule


def check_ids(ids: Sequence[int], vocabulary: int) -> None:
    """Raise InvalidRequest for an id outside the vocabulary."""
    if len(ids) and not 0 <= min(ids) <= max(ids) < vocabulary:
        outside = next(token for token in ids if not 0 <= token < vocabulary)
        raise InvalidRequest(f"token id {outside} is outside the vocabulary of {vocabulary}")


class Rules:
    """Builds token rules for a model. grammars: None if grammars are not supported."""

    def __init__(self, model: Model, vocabulary: int, grammars: Grammars | None) -> None:
        self._masks, self._vocabulary, self._grammars = model.masks, vocabulary, grammars

    def has_checked(self, params: SamplingParams) -> bool:
        """Whether the grammar, if any, was already checked."""
        if params.grammar is None or self._grammars is None:
            return True
        return self._grammars.has_checked(params.grammar)

    def check(self, params: SamplingParams) -> None:
        """Check a request's grammar, which may take long; see Grammars.check()."""
        if params.grammar is not None and self._grammars is not None:
            self._grammars.check(params.grammar)

    def make(self, prompt: Sequence[int], params: SamplingParams) -> TokenRule | None:
        """Return the rule of a request; None if it adjusts no logits.

        Raises InvalidRequest for an invalid rule, or if the model does not support rules.
        """
        if params.made >= len(prompt):
            raise InvalidRequest(
                f"{params.made} tokens of a prompt of {len(prompt)} are output: it begins with at "
                "least one that is not"
            )
        if params.needs_rule and not self._masks:
            raise InvalidRequest(
                "this target supports no grammar, penalties, biases or min_tokens, and reports no "
                "log-probabilities: `outrider compile --masks` builds graphs that do"
            )
        if params.grammar is not None and self._grammars is None:
            raise InvalidRequest("this target has no tokenizer, so it supports no grammar")
        check_ids([token for token, _ in params.logit_bias], self._vocabulary)
        if self._grammars is not None:
            return self._grammars.rule(prompt, params)
        return plain_rule(prompt, params, self._vocabulary) if params.adjusts else None


class DraftRules:
    """Builds the rules of sessions for the draft that will join them.

    This happens on another thread, since compiling a grammar would delay all forward passes.
    """

    def __init__(self, make: MakeRule) -> None:
        self._make, self._aside = make, ThreadPoolExecutor(1, "draft rules")
        self._begun = WeakKeyDictionary[Session, tuple[int, Future[TokenRule | None]]]()

    def find(self, session: Session) -> MakeRule | None:
        """Return a function that returns the session's rule, once; None while the rule is built."""
        if not session.params.adjusts:
            return no_rule
        if session not in self._begun:
            output = session.params.made + session.made
            params = replace(session.params, made=output)
            rule = self._aside.submit(self._make, tuple(session.tokens), params)
            self._begun[session] = session.length, rule
        length, rule = self._begun[session]
        if not rule.done():
            return None
        del self._begun[session]

        def give(prompt: Sequence[int], params: SamplingParams) -> TokenRule | None:
            text_rule = rule.result()
            if text_rule is not None:
                text_rule.commit(prompt[length:])
            return text_rule

        return give
