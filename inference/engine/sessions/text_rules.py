"""Rules of a target's texts: for the target, if its model supports them, and for its draft."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from weakref import WeakKeyDictionary

from inference.backends import Model
from inference.drafters.draft_rule import MakeRule, no_rule
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
    """Builds rules for a model. grammars: None where grammars are not supported."""

    def __init__(self, model: Model, vocabulary: int, grammars: Grammars | None) -> None:
        self._masks, self._vocabulary, self._grammars = model.masks, vocabulary, grammars

    def has_checked(self, params: SamplingParams) -> bool:
        """Whether the rule's grammar, if any, is already checked."""
        if params.grammar is None or self._grammars is None:
            return True
        return self._grammars.has_checked(params.grammar)

    def check(self, params: SamplingParams) -> None:
        """Check a text's grammar, which may take long; see Grammars.check()."""
        if params.grammar is not None and self._grammars is not None:
            self._grammars.check(params.grammar)

    def make(self, prompt: Sequence[int], params: SamplingParams) -> TokenRule | None:
        """Return the rule of a text; None where its logits are not adjusted.

        Raises InvalidRequest for an invalid rule, or one that the model does not support.
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
    """Rules of sessions, each for the draft that will join its text.

    Rules are built on another thread, since compiling a grammar would delay all forward passes.
    """

    def __init__(self, make: MakeRule) -> None:
        self._make, self._aside = make, ThreadPoolExecutor(1, "draft rules")
        self._begun = WeakKeyDictionary[Session, tuple[int, Future[TokenRule | None]]]()

    def find(self, session: Session) -> MakeRule | None:
        """Return what gives the rule of a session's text, once; None while it is being built."""
        if not session.params.adjusts:
            return no_rule
        if session not in self._begun:
            made = session.params.made + session.made
            params = replace(session.params, made=made)
            rule = self._aside.submit(self._make, tuple(session.tokens), params)
            self._begun[session] = session.length, rule
        length, rule = self._begun[session]
        if not rule.done():
            return None
        del self._begun[session]

        def give(prompt: Sequence[int], params: SamplingParams) -> TokenRule | None:
            given = rule.result()
            if given is not None:
                given.commit(prompt[length:])
            return given

        return give
