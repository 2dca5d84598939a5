"""Sets of prompts: our own small one, published ones by name, and files of JSON lines.

A row's keys say which format it has: that of an Item, or that of a published set.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from inference.errors import InvalidRequest
from outrider.measure.published_sets import Row, find, json_lines
from outrider.options.groups import PromptOptions
from outrider.text.prompts import read_prompts

SMALL = Path(__file__).parent / "small"
"""Files of the set that ships, one a kind."""

PROMPTS = (
    "def read_lines(path, encoding='utf-8'):",
    "class Queue:",
    "import os\nimport sys\n\ndef main(argv):",
    "for name in sorted(os.listdir(path)):",
)
"""Prompts of a run that names none, and that is to be short."""

_SPEC_BENCH = {"translation", "summarization", "qa", "math_reasoning", "rag"}
"""Categories of Spec-Bench. Its others are those of MT-bench."""


class Item(NamedTuple):
    """A text of a set.

    set: "small", a published set's name, or a file's name
    kind: of work, such as code or chat
    name: of the text in its set, unique within it
    turns: messages of the user, one after the other
    schema: JSON schema that the answer keeps to
    answer: right answer, which a score compares with
    """

    set: str
    kind: str
    name: str
    turns: tuple[str, ...]
    system: str | None = None
    schema: str | None = None
    answer: str | None = None

    @property
    def place(self) -> str:
        """The text's name among those of all sets."""
        return f"{self.set}/{self.kind}/{self.name}"


def read_lines(path: str | None) -> list[Item]:
    """The lines of a file as prompts, by their numbers; without a file PROMPTS."""
    lines = PROMPTS if path is None else read_prompts(PromptOptions(prompt_text=path))
    return [Item("", "text", str(number), (text,)) for number, text in enumerate(lines)]


def read_sets(names: Sequence[str], samples: int | None, seed: int) -> list[Item]:
    """Return texts of these sets, the kinds in turn. Raises InvalidRequest for an unknown set.

    names: small, NAME or NAME@COMMIT of a published set
    samples: texts of each kind of a set, drawn by the seed; None for all
    """
    found = {name: find(name) for name in names if name != "small"}
    draw = random.Random(seed)  # noqa: S311 (which texts are read is no secret)
    return _in_turn(
        draw.sample(kind, len(kind) if samples is None else min(samples, len(kind)))
        for name in dict.fromkeys(names)
        for kind in _by_kind(_small() if name == "small" else _items(name, found[name].rows()))
    )


def read_file(path: Path, samples: int | None) -> list[Item]:
    """Return the first texts of each kind of a file of JSON lines, the kinds in turn."""
    return _in_turn(kind[:samples] for kind in _by_kind(_items(path.name, _rows(path))))


def _rows(path: Path) -> Iterator[Row]:
    try:
        return json_lines(path.name, path.read_bytes())
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from error


def _small() -> Iterator[Item]:
    files = sorted(SMALL.glob("*.jsonl"))
    return _items("small", ({"kind": path.stem, **row} for path in files for row in _rows(path)))


def _items(source: str, rows: Iterable[Row]) -> Iterator[Item]:
    """Read rows in any known format. Raises InvalidRequest for others, and for a name twice."""
    names = Counter[str]()
    for number, row in enumerate(rows, start=1):
        read = next((read for keys, read in _FORMATS if keys <= row.keys()), None)
        if read is None:
            raise InvalidRequest(
                f"{source}, text {number} has the keys {', '.join(sorted(row))}: needed are name "
                "and turns, or those of a format in docs/measuring.md"
            )
        try:
            item = _CHECKED.validate_python(read(row))
        except (ValidationError, LookupError, TypeError) as error:
            said = " ".join(f"{type(error).__name__}: {error}".split())
            raise InvalidRequest(f"{source}, text {number}: {said[:200]}") from error
        names[name := item.name or str(number)] += 1
        if names[name] > 1:
            raise InvalidRequest(f"{source} has two texts of the name {name}")
        yield item._replace(set=source, name=name)


def _own(row: Row) -> Item:
    schema, kind = row.get("schema"), row.get("kind", "text")
    schema = schema if schema is None else json.dumps(schema)
    return Item("", kind, row["name"], row["turns"], row.get("system"), schema, row.get("answer"))


def _question(row: Row) -> Item:
    """Read a question of MT-bench or Spec-Bench: MT-bench is of the kind chat in both."""
    category = row["category"]
    kind = category if category in _SPEC_BENCH else "chat"
    answer = _behind_hashes(row["reference"][0]) if kind == "math_reasoning" else None
    return Item("", kind, f"{category}/{row['question_id']}", row["turns"], answer=answer)


def _behind_hashes(text: str) -> str:
    return text.rpartition("####")[2].strip()


_FORMATS: Sequence[tuple[set[str], Callable[[Row], Item]]] = (
    (
        {"task_id", "prompt", "entry_point"},  # HumanEval
        lambda row: Item("", "code", row["task_id"], (row["prompt"],)),
    ),
    ({"question_id", "category", "turns"}, _question),
    ({"name", "turns"}, _own),
    (
        {"question", "answer"},  # GSM8K
        lambda row: Item("", "maths", "", (row["question"],), answer=_behind_hashes(row["answer"])),
    ),
    (
        {"problem", "answer", "unique_id"},  # MATH-500
        lambda row: Item(
            *("", "maths", row["unique_id"]),
            (f"{row['problem']}\n\nPut the final answer within \\boxed{{}}.",),
            answer=row["answer"],
        ),
    ),
)
"""Keys of a format, and what reads a row that has them."""

_CHECKED = TypeAdapter(Item)


def _by_kind(items: Iterable[Item]) -> list[list[Item]]:
    kinds = defaultdict[str, list[Item]](list)
    for item in items:
        kinds[item.kind].append(item)
    return list(kinds.values())


def _in_turn(kinds: Iterable[Sequence[Item]]) -> list[Item]:
    """One text of each kind, then the next of each."""
    return [item for item in chain.from_iterable(zip_longest(*kinds)) if item is not None]
