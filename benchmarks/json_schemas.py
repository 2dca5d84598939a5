"""JSON Schema's test suite against the grammars: schemas that are taken, and what they let through.

    python -m benchmarks.json_schemas DIR [--names] [--json FILE]

DIR holds files of the suite, such as its tests/draft2020-12. A schema is taken, or refused with a
reason. Each of its instances is written in one line. Orders of an object's properties are tried up
to a bound. --names lists the instances about which grammar and suite differ.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice, permutations, product
from typing import Any, ClassVar

from benchmarks.harness import Flags, Folder, JsonFile, run, show
from inference.errors import InvalidRequest
from inference.grammar import Grammars
from inference.sampling import Grammar, GrammarKind, SamplingParams
from inference.text import Tokenizer
from outrider.models.directories import EMBEDDED

MOST_ORDERS = 200
"""Orders of properties that are tried for one instance."""


class SuiteFlags(Flags):
    BARE: ClassVar = "suite"
    suite: Folder
    """the suite's files"""
    names: bool = False
    """list the instances about which grammar and suite differ"""
    as_json: JsonFile = None
    """write the figures to this file"""


class Judge:
    """Tells whether a grammar of the embedded model lets a whole text through."""

    def __init__(self) -> None:
        self._tokenizer = Tokenizer(EMBEDDED / "target")
        (self._stop,) = stops = (1,)
        self._grammars = Grammars(self._tokenizer.to_json(), self._tokenizer.vocabulary, stops)

    def refusal(self, grammar: Grammar) -> str:
        """Why the grammar is refused; nothing where it is taken."""
        try:
            self._grammars.rule([0], SamplingParams(grammar=grammar))
        except InvalidRequest as error:
            return str(error)
        return ""

    def takes(self, grammar: Grammar, text: str) -> bool:
        ids = self._tokenizer.encode(text)
        params = SamplingParams(grammar=grammar, made=len(ids) - 1)  # but for the first one
        try:
            rule = self._grammars.rule(ids, params)
        except InvalidRequest:
            return False
        return rule is not None and rule.allows((), (self._stop,))[0]


def orders(value: Any) -> Iterator[Any]:
    """The value with the properties of its objects in all orders."""
    if isinstance(value, dict):
        for order in permutations(value):
            for parts in product(*(orders(value[name]) for name in order)):
                yield dict(zip(order, parts, strict=True))
    elif isinstance(value, list):
        yield from map(list, product(*map(orders, value)))
    else:
        yield value


def measure(flags: SuiteFlags) -> None:
    judge, counts, reasons = Judge(), Counter[str](), Counter[str]()
    for path in sorted(flags.suite.glob("*.json")):
        for case in json.loads(path.read_text(encoding="utf-8")):
            grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(case["schema"]))
            if refused := judge.refusal(grammar):
                counts["schemas refused"] += 1
                reasons[refused] += 1
                continue
            counts["schemas taken"] += 1
            for test in case["tests"]:
                texts = (json.dumps(one, ensure_ascii=False) for one in orders(test["data"]))
                taken = any(judge.takes(grammar, text) for text in islice(texts, MOST_ORDERS))
                valid = "valid" if test["valid"] else "invalid"
                counts[f"{valid} instances {'taken' if taken else 'not taken'}"] += 1
                if flags.names and taken is not test["valid"]:
                    print(f"{path.name}: {case['description']}: {test['description']}: {valid}")
    for reason, times in reasons.most_common():
        print(f"{times:4} {reason}")
    show(dict(sorted(counts.items())), flags.as_json)


if __name__ == "__main__":
    run(SuiteFlags, measure)
