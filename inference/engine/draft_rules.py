"""Rules of the texts that are drafted beside the target.

A rule is made on a thread of its own, since compiling its grammar would hold up all forwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from weakref import WeakKeyDictionary

from inference.drafters.draft_rule import MakeRule, no_rule
from inference.engine.session import Session
from inference.sampling import SamplingParams
from inference.token_rule import TokenRule


class DraftRules:
    """Rules of sessions, each for the draft that is to join its text."""

    def __init__(self, make: MakeRule) -> None:
        self._make, self._aside = make, ThreadPoolExecutor(1, "draft rules")
        self._begun = WeakKeyDictionary[Session, tuple[int, Future[TokenRule | None]]]()

    def find(self, session: Session) -> MakeRule | None:
        """Return what gives the rule of a session's text, once; None while it is being made."""
        if not session.params.adjusts:
            return no_rule
        if session not in self._begun:
            made = session.params.made + session.length - session.prompt_length
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
