"""Sets of prompts: a small bundled set, and JSON lines files, including published benchmarks.

The keys of a row determine its format: an Item, or a row of a published benchmark.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from pydantic import TypeAdapter, ValidationError

from inference.errors import InvalidRequest
from outrider.options.groups import TextOptions
from outrider.text.prompts import read_prompts

SMALL = Path(__file__).parent / "small"
"""Directory of the bundled set, with a file for each kind."""

PROMPTS = (
    "def read_lines(path, encoding='utf-8'):",
    "class Queue:",
    "import os\nimport sys\n\ndef main(argv):",
    "for name in sorted(os.listdir(path)):",
)
"""Default prompts of commands that should finish quickly."""

_SPEC_BENCH = {"translation", "summarization", "qa", "math_reasoning", "rag"}
"""Categories of Spec-Bench that MT-bench does not have."""

Row: TypeAlias = Mapping[str, Any]


class Item(NamedTuple):
    """A prompt of a set.

    set: "small", or a file's name
    kind: kind of work, such as code or chat
    name: name of the prompt, unique in its set
    turns: the user's messages in order
    schema: JSON schema that the answer follows
    temperature: sampling temperature; None to use the run's temperature
    """

    set: str
    kind: str
    name: str
    turns: tuple[str, ...]
    system: str | None = None
    schema: str | None = None
    temperature: float | None = None

    @property
    def place(self) -> str:
        """The prompt's set, kind and name, separated by slashes."""
        return f"{self.set}/{self.kind}/{self.name}"

    def messages(self, answers: Sequence[str]) -> list[dict[str, str]]:
        """Return the chat up to the next user message, with the answers to earlier messages."""
        chat = [("system", self.system)] if self.system else []
        for question, answer in zip(self.turns, answers, strict=False):
            chat += [("user", question), ("assistant", answer)]
        chat.append(("user", self.turns[len(answers)]))
        return [{"role": role, "content": content} for role, content in chat]


def read_lines(path: str | None) -> list[Item]:
    """Read the lines of a file as prompts named by number; without a file, return PROMPTS."""
    lines = PROMPTS if path is None else read_prompts(TextOptions(prompt_text=path))
    return [Item("", "text", str(number), (text,)) for number, text in enumerate(lines)]


def read_set(path: Path | None, samples: int | None) -> list[Item]:
    """Read the prompts of a JSON lines file, or of the small set, alternating between kinds.

    samples: number of prompts of each kind; None for all
    """
    kinds = defaultdict[str, list[Item]](list)
    for item in _small() if path is None else _items(path.name, _rows(path)):
        kinds[item.kind].append(item)
    turns = zip_longest(*(items[:samples] for items in kinds.values()))
    return [item for item in chain.from_iterable(turns) if item is not None]


def _small() -> Iterator[Item]:
    files = sorted(SMALL.glob("*.jsonl"))
    return _items("small", ({"kind": path.stem, **row} for path in files for row in _rows(path)))


def _rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a JSON lines file, optionally gzipped. Raises InvalidRequest if bad."""
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(filter(str.strip, text.split("\n")), start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise InvalidRequest(f"{path.name}, text {number} is no JSON object: got {line:.80}")
        yield row


def _items(source: str, rows: Iterable[Row]) -> Iterator[Item]:
    """Parse rows. Raises InvalidRequest for an unknown format and for duplicate names."""
    names = Counter[str]()
    for number, row in enumerate(rows, start=1):
        parse = next((parse for keys, parse in _FORMATS if keys <= row.keys()), None)
        if parse is None:
            raise InvalidRequest(
                f"{source}, text {number} has the keys {', '.join(sorted(row))}: needed are name "
                "and turns, or those of a format in docs/measuring.md"
            )
        try:
            item = _CHECKED.validate_python(parse(row))
        except (ValidationError, LookupError, TypeError) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise InvalidRequest(f"{source}, text {number}: {reason[:200]}") from error
        names[name := item.name or str(number)] += 1
        if names[name] > 1:
            raise InvalidRequest(f"{source} has two texts of the name {name}")
        yield item._replace(set=source, name=name)


def _own(row: Row) -> Item:
    schema = None if row.get("schema") is None else json.dumps(row["schema"])
    return Item("", row.get("kind", "text"), row["name"], row["turns"], row.get("system"), schema)


def _question(row: Row) -> Item:
    """Parse a question of MT-bench or Spec-Bench. MT-bench questions have the kind chat in both."""
    category = row["category"]
    kind = category if category in _SPEC_BENCH else "chat"
    return Item("", kind, f"{category}/{row['question_id']}", row["turns"])


_FORMATS: Sequence[tuple[set[str], Callable[[Row], Item]]] = (
    (
        {"task_id", "prompt", "entry_point"},  # HumanEval
        lambda row: Item("", "code", row["task_id"], (row["prompt"],)),
    ),
    ({"question_id", "category", "turns"}, _question),
    ({"name", "turns"}, _own),
    ({"question", "answer"}, lambda row: Item("", "maths", "", (row["question"],))),  # GSM8K
    (
        {"problem", "answer", "unique_id"},  # MATH-500
        lambda row: Item("", "maths", row["unique_id"], (row["problem"],)),
    ),
)
"""Row formats: the keys that identify a format, and the function that parses its rows."""

_CHECKED = TypeAdapter(Item)
