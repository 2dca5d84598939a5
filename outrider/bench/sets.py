"""Sets of prompts: our own small one, published ones by name, and files of JSON lines."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from inference.errors import InvalidRequest

SMALL = Path(__file__).parent / "small"
"""Files of the set that ships, one a kind."""


class Item(NamedTuple):
    """A text of a set.

    set: "small", a published set's name, or a file's name
    kind: of work, such as code or chat
    name: of the text in its set, unique within it
    turns: messages of the user, one after the other
    schema: JSON schema that the answer keeps to
    answer: right answer, which a score compares with
    tests: program that follows the answer's code, and fails where that is wrong
    """

    set: str
    kind: str
    name: str
    turns: tuple[str, ...]
    system: str | None = None
    schema: str | None = None
    answer: str | None = None
    tests: str | None = None


def read_sets(names: Sequence[str], samples: int | None, seed: int) -> list[Item]:
    """Return texts of these sets, the kinds in turn. Raises InvalidRequest for an unknown set.

    samples: texts of each kind of a set, drawn by the seed; None for all
    """
    draw = random.Random(seed)  # noqa: S311 (which texts are read is no secret)
    return _in_turn(
        draw.sample(kind, min(samples or len(kind), len(kind)))
        for name in names
        for kind in _by_kind(_read_set(name))
    )


def read_file(path: Path, samples: int | None) -> list[Item]:
    """Return the first texts of each kind of a file of JSON lines, the kinds in turn."""
    return _in_turn(kind[:samples] for kind in _by_kind(_own(path.name, path.stem, _lines(path))))


def _read_set(name: str) -> Iterator[Item]:
    if name != "small":
        raise InvalidRequest(f"no set is named {name}: small is")
    return chain.from_iterable(
        _own("small", path.stem, _lines(path)) for path in sorted(SMALL.glob("*.jsonl"))
    )


def _lines(path: Path) -> Iterator[Mapping[str, Any]]:
    yield from map(json.loads, path.read_text(encoding="utf-8").splitlines())


def _own(source: str, kind: str, rows: Iterable[Mapping[str, Any]]) -> Iterator[Item]:
    """Texts of rows with an Item's own fields."""
    for row in rows:
        yield Item(
            source,
            row.get("kind", kind),
            row["name"],
            tuple(row["turns"]),
            row.get("system"),
            json.dumps(row["schema"]) if "schema" in row else None,
            row.get("answer"),
            row.get("tests"),
        )


def _by_kind(items: Iterable[Item]) -> list[list[Item]]:
    kinds = defaultdict[str, list[Item]](list)
    for item in items:
        kinds[item.kind].append(item)
    return list(kinds.values())


def _in_turn(kinds: Iterable[Sequence[Item]]) -> list[Item]:
    """One text of each kind, then the next of each."""
    return [item for turn in zip_longest(*kinds) for item in turn if item is not None]
