"""Grammars for a tokenizer, compiled by llguidance. Only this file and grammar_check.py import
llguidance.

A grammar is checked once but compiled for each request: copies of a compiled grammar share a lexer
and its limit, which another user's request could exhaust.
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

MAX_CHECKED = 1000
"""Number of recent grammars whose check result is cached."""

SECONDS_AT_ONCE, SECONDS_A_STEP = 0.5, 0.003
"""Processor time for a request's grammar: a budget that each step uses up, and its refill per step.
A step consumes a token, or computes the tokens that may follow.
"""

ONE_LINE: JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
"""JSON on a single line, as most models write it. A schema can override this by "x-guidance"."""

ENFORCED: JsonCompileOptions = {"lenient": False, "coerce_one_of": False}
"""Options that no schema may override: they make unsupported keywords errors."""


class Grammars:
    """Compiles grammars for the tokenizer of a target or draft. Thread-safe.

    vocabulary: number of token ids; higher ids are never allowed
    stop_ids: the only ids that may follow a complete output
    """

    def __init__(self, tokenizer_json: str, vocabulary: int, stop_ids: Sequence[int]) -> None:
        self._json, self._vocabulary = tokenizer_json, vocabulary
        self._stop_ids = sorted(token for token in stop_ids if 0 <= token < vocabulary)
        self._tokenizer: LLTokenizer | None = None
        self._lock = threading.Lock()
        self._checked: OrderedDict[str, str] = OrderedDict()  # digest -> reason for refusal, or ""

    @property
    def ends_texts(self) -> bool:
        """Whether the model has a token that ends an output, which grammars need."""
        return bool(self._stop_ids)

    def prepare(self) -> LLTokenizer:
        """Return the tokenizer for llguidance. The first call builds it, which takes a second for
        150,000 ids. Raises InvalidRequest if the model has no token that ends an output.
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
        """Return the token rule of a request; None if it adjusts no logits.

        Raises InvalidRequest for a grammar that cannot be compiled, or that the prompt's last
        `made` tokens violate, and Busy as check() does.
        """
        if not params.adjusts:
            return None
        if params.grammar is None:
            return plain_rule(prompt, params, self._vocabulary)
        return TokenRule(prompt, params, self._matcher(params.grammar))

    def has_checked(self, grammar: Grammar) -> bool:
        """Whether the result of check() is cached."""
        with self._lock:
            return grammar.digest in self._checked

    def check(self, grammar: Grammar) -> str:
        """Check a grammar by compiling it in another process. Return it in llguidance's format.

        Raises InvalidRequest if it cannot be compiled, and Busy if the check timed out because
        this machine is too busy.
        """
        from inference.text.grammar_check import check

        digest, text = grammar.digest, _written(grammar)
        with self._lock:
            cached = self._checked.get(digest)
        reason = check(text) if cached is None else cached
        if reason is None:
            raise Busy("this machine is too busy to compile the grammar: try again later")
        with self._lock:
            self._checked[digest] = reason
            self._checked.move_to_end(digest)
            if len(self._checked) > MAX_CHECKED:
                self._checked.popitem(last=False)
        if reason:
            raise InvalidRequest(f"the grammar is refused: {reason}")
        return text

    def _matcher(self, grammar: Grammar) -> GrammarMatcher:
        tokenizer, text = self.prepare(), self.check(grammar)
        return GrammarMatcher(tokenizer, text, self._vocabulary, self._stop_ids)


def _written(grammar: Grammar) -> str:
    """Convert a grammar to llguidance's format. Raises InvalidRequest."""
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
        reason = next(iter(str(error).splitlines()), "no JSON")
        raise InvalidRequest(f"the schema cannot be read: {reason[:200]}") from error


def _check_embedded(text: str) -> None:
    """Raise InvalidRequest if a schema in a Lark grammar (%json) overrides an ENFORCED option."""
    decoder = json.JSONDecoder(object_pairs_hook=list)  # keeps duplicate names
    for place in re.finditer(r"%json\s*(?=\{)", text):
        try:
            schema, _ = decoder.raw_decode(text, place.end())
        except (ValueError, RecursionError):
            continue  # not a schema: llguidance rejects it unless it is in a string
        options = [value for name, value in schema if name == "x-guidance"]
        names = {name for value in options if isinstance(value, list) for name, *_ in value}
        if changed := names & ENFORCED.keys():
            raise InvalidRequest(f"a schema cannot set {', '.join(sorted(changed))} in x-guidance")


def _literals(text: str) -> list[str]:
    """Return the strings of a JSON list, quoted. Raises InvalidRequest for anything else."""
    try:
        choices = json.loads(text)
        quoted = [json.dumps(choice, ensure_ascii=False) for choice in choices]
        "".join(quoted).encode()  # fails for half of a surrogate pair
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"choices are a JSON list of strings: {error}") from error
    strings = all(isinstance(choice, str) and choice for choice in choices)
    if not (isinstance(choices, list) and choices and strings):
        raise InvalidRequest("choices are a JSON list of strings that are not empty")
    return quoted


class GrammarMatcher:
    """The Matcher of a request. Only stop ids may follow a complete output.

    words: number of 32-bit words of a bit set of token ids
    """

    def __init__(
        self, tokenizer: LLTokenizer, grammar: str, vocabulary: int, stop_ids: Sequence[int]
    ) -> None:
        """Raises InvalidRequest if the grammar cannot be compiled, or allows no output."""
        from inference.text.grammar_check import begin

        self.words = -(-vocabulary // 32)
        self._vocabulary, self._stop_ids = vocabulary, frozenset(stop_ids)
        self._ended = 0  # number of consumed stop ids
        self._budget, self._error = SECONDS_AT_ONCE, ""  # processor time; error of the matcher
        self._state = begin(tokenizer, grammar)
        self.fill(np.zeros(self.words, dtype=np.int32))  # fails now if no token may come first

    def consume(self, token: int) -> bool:
        stops = token in self._stop_ids
        if self._ended or (stops and self._state.is_accepting()):
            self._ended += stops
            return stops
        valid = 0 <= token < self._vocabulary
        return valid and self._timed(lambda: self._state.try_consume_tokens([token])) == 1

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
        """Run a step and charge its processor time. Raises InvalidRequest if it fails."""
        from inference.text.grammar_check import error_of

        began = time.thread_time()
        done = work()
        took = time.thread_time() - began
        self._budget = min(self._budget + SECONDS_A_STEP - took, SECONDS_AT_ONCE)
        if self._state.is_error():
            self._error = f"the grammar cannot continue: {error_of(self._state)}"
        elif self._budget < 0:
            self._error = (
                f"the grammar takes too long: a step may take {SECONDS_A_STEP * 1000:.0f} ms, and "
                f"now and then {SECONDS_AT_ONCE} s"
            )
        if self._error:
            raise InvalidRequest(self._error)
        return done
