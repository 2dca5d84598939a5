"""Grammars of a tokenizer, compiled by llguidance, which only this file and grammar_check.py
import.

A grammar is checked once, and compiled for each text: copies of a compiled grammar would share a
lexer and its limit, so that another user's text could use it up.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from inference.errors import Busy, InvalidRequest
from inference.sampling import Grammar, GrammarKind, SamplingParams
from inference.token_rule import TokenRule, plain_rule
from inference.tree.token_tree import IntArray

if TYPE_CHECKING:
    from llguidance import LLTokenizer
    from llguidance._lib import JsonCompileOptions

T = TypeVar("T")

KEPT = 1000
"""Latest grammars for which the result of the check is cached."""

SECONDS_AT_ONCE, SECONDS_A_STEP = 0.5, 0.003
"""Processor time that a text's grammar may take at once, and that each step of its work adds to it.
A step consumes a token, or computes the tokens that may follow.
"""

ONE_LINE: JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
"""JSON is on a single line, as models mostly write it. A schema's own "x-guidance" may specify
otherwise.
"""

ENFORCED: JsonCompileOptions = {"lenient": False, "coerce_one_of": False}
"""Options that no schema may change: an unsupported keyword is an error."""


class Grammars:
    """The grammars of a target's or a draft's tokenizer. Any thread may call it.

    vocabulary: number of the tokenizer's ids; no other id is ever allowed.
    stop_ids: the only ids that may follow a complete text.
    """

    def __init__(self, tokenizer_json: str, vocabulary: int, stop_ids: Sequence[int]) -> None:
        self._json, self._vocabulary = tokenizer_json, vocabulary
        self._stop_ids = sorted(token for token in stop_ids if 0 <= token < vocabulary)
        self._tokenizer: LLTokenizer | None = None
        self._lock = threading.Lock()
        self._checked: OrderedDict[str, str] = OrderedDict()  # digest -> why it is refused, or ""

    @property
    def ends_texts(self) -> bool:
        """Whether a token ends a text, which grammars need."""
        return bool(self._stop_ids)

    def prepare(self) -> LLTokenizer:
        """Read the tokenizer, which takes a second of Python for 150,000 ids; return it.

        The first grammar does so, too, if needed. Raises InvalidRequest where
        no token ends a text.
        """
        if not self.ends_texts:
            raise InvalidRequest(
                "this model has no token that ends a text: it supports no grammar, since no text "
                "could be complete"
            )
        from llguidance import LLTokenizer

        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = LLTokenizer(
                    self._json, n_vocab=self._vocabulary, eos_token=self._stop_ids
                )
            return self._tokenizer

    def rule(self, prompt: Sequence[int], params: SamplingParams) -> TokenRule | None:
        """Return the rule of a text; None where its logits are not adjusted.

        Raises InvalidRequest for a grammar that cannot be compiled, or that the prompt's last
        `made` tokens break, and Busy.
        """
        if not params.adjusts:
            return None
        if params.grammar is None:
            return plain_rule(prompt, params, self._vocabulary)
        return TokenRule(prompt, params, self._matcher(params.grammar))

    def has_checked(self, grammar: Grammar) -> bool:
        """Whether check() has a cached result."""
        with self._lock:
            return grammar.digest in self._checked

    def check(self, grammar: Grammar) -> str:
        """Return a grammar as llguidance reads it, once another process has compiled it.

        Raises InvalidRequest if it cannot be compiled, and Busy if this machine is too busy
        to find out.
        """
        from inference.text.grammar_check import check

        digest, text = grammar.digest, _written(grammar)
        with self._lock:
            known = self._checked.get(digest)
        said = check(text) if known is None else known
        if said is None:
            raise Busy("this machine is too busy to compile the grammar: try again later")
        with self._lock:
            self._checked[digest] = said
            self._checked.move_to_end(digest)
            if len(self._checked) > KEPT:
                self._checked.popitem(last=False)
        if said:
            raise InvalidRequest(f"the grammar is refused: {said}")
        return text

    def _matcher(self, grammar: Grammar) -> GrammarMatcher:
        tokenizer, text = self.prepare(), self.check(grammar)
        return GrammarMatcher(tokenizer, text, self._vocabulary, self._stop_ids)


def _written(grammar: Grammar) -> str:
    """Return a grammar as llguidance reads it. Raises InvalidRequest."""
    from llguidance import LLMatcher

    kind, text = grammar.kind, grammar.text
    if kind is GrammarKind.REGEX:
        return LLMatcher.grammar_from_regex(text)
    if kind is GrammarKind.EBNF:
        _check_embedded(text)
        return LLMatcher.grammar_from_lark(text)
    if kind is GrammarKind.CHOICE:
        return LLMatcher.grammar_from_lark(f"start: {' | '.join(_literals(text))}")
    try:
        return LLMatcher.grammar_from_json_schema(text, defaults=ONE_LINE, overrides=ENFORCED)
    except ValueError as error:
        said = next(iter(str(error).splitlines()), "no JSON")
        raise InvalidRequest(f"the schema cannot be read: {said[:200]}") from error


def _check_embedded(text: str) -> None:
    """Raise InvalidRequest where a schema within a Lark grammar (%json) changes an option of
    ENFORCED.
    """
    decoder = json.JSONDecoder(object_pairs_hook=list)  # a name that comes twice is seen twice
    for place in re.finditer(r"%json\s*(?=\{)", text):
        try:
            schema, _ = decoder.raw_decode(text, place.end())
        except (ValueError, RecursionError):
            continue  # no schema: llguidance rejects it unless it is in a string
        options = [value for name, value in schema if name == "x-guidance"]
        names = {name for value in options if isinstance(value, list) for name, *_ in value}
        if changed := names & ENFORCED.keys():
            raise InvalidRequest(f"a schema cannot set {', '.join(sorted(changed))} in x-guidance")


def _literals(text: str) -> list[str]:
    """Return the strings of a JSON list, in quotes. Raises InvalidRequest for anything else."""
    try:
        choices = json.loads(text)
        quoted = [json.dumps(choice, ensure_ascii=False) for choice in choices]
        "".join(quoted).encode()  # no half of a pair
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"choices are a JSON list of strings: {error}") from error
    strings = all(isinstance(choice, str) and choice for choice in choices)
    if not (isinstance(choices, list) and choices and strings):
        raise InvalidRequest("choices are a JSON list of strings that are not empty")
    return quoted


class GrammarMatcher:
    """A Matcher of one text. Only stop ids may follow a complete text.

    words: of a set of the tokenizer's ids
    """

    def __init__(
        self, tokenizer: LLTokenizer, grammar: str, vocabulary: int, stop_ids: Sequence[int]
    ) -> None:
        """Raises InvalidRequest if the grammar cannot be compiled, or allows no text."""
        from inference.text.grammar_check import begin

        self.words = -(-vocabulary // 32)
        self._vocabulary, self._stop_ids = vocabulary, frozenset(stop_ids)
        self._ended = 0  # stop ids that were consumed
        self._left, self._error = SECONDS_AT_ONCE, ""  # of the processor; error of the matcher
        self._state = begin(tokenizer, grammar)
        self.fill(np.zeros(self.words, dtype=np.int32))  # fails now if the grammar cannot begin

    def consume(self, token: int) -> bool:
        stops = token in self._stop_ids
        if self._ended or (stops and self._state.is_accepting()):
            self._ended += stops
            return stops
        known = 0 <= token < self._vocabulary
        return known and self._timed(lambda: self._state.try_consume_tokens([token])) == 1

    def rollback(self, count: int) -> None:
        ended = min(count, self._ended)
        self._ended -= ended
        if count > ended:
            self._timed(lambda: self._state.rollback(count - ended))

    def fill(self, allowed: IntArray) -> None:  # [words]
        if not self._ended:
            at, size = allowed.ctypes.data, allowed.nbytes
            self._timed(lambda: self._state.unsafe_compute_mask_ptr(at, size))
            return
        allowed[:] = 0
        for token in self._stop_ids:
            allowed[token >> 5] |= np.uint32(1 << (token & 31)).astype(np.int32)

    def forced(self) -> Sequence[int]:
        return () if self._ended else self._timed(self._state.compute_ff_tokens)

    def _timed(self, work: Callable[[], T]) -> T:
        """Do a step of the grammar's work. Raises InvalidRequest if it cannot continue."""
        from inference.text.grammar_check import error_of

        began = time.thread_time()
        done = work()
        took = time.thread_time() - began
        self._left = min(self._left + SECONDS_A_STEP - took, SECONDS_AT_ONCE)
        if self._state.is_error():
            self._error = f"the grammar cannot continue: {error_of(self._state)}"
        elif self._left < 0:
            self._error = (
                f"the grammar takes too long: a step may take {SECONDS_A_STEP * 1000:.0f} ms, and "
                f"now and then {SECONDS_AT_ONCE} s"
            )
        if self._error:
            raise InvalidRequest(self._error)
        return done
