"""Rows of prompt sets: of files of JSON lines, and of published sets at a pinned commit."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.request import urlopen

from inference.errors import InvalidRequest, Unavailable
from inference.extras import require

Row: TypeAlias = Mapping[str, Any]

_TABLE = Path(__file__).with_name("published.json")
_GITHUB = "https://raw.githubusercontent.com/{github}/{revision}/{file}"
_SECONDS, _MAX_BYTES = 30, 2**26


class Published(NamedTuple):
    """A published set. It is a dataset of the Hugging Face Hub, or a file of a GitHub repository.

    revision: the commit that is read, 40 hexadecimal digits
    """

    name: str
    revision: str
    licence: str
    hub: str = ""
    config: str = ""
    split: str = ""
    github: str = ""
    file: str = ""

    def rows(self) -> Iterator[Row]:
        """Read the set. Raises MissingExtra without the package datasets, where it is needed, and
        Unavailable where the set cannot be had.
        """
        try:
            yield from self._file() if self.github else self._dataset()
        except (OSError, ValueError) as error:
            said = next(iter(str(error).splitlines()), type(error).__name__)[:200]
            raise Unavailable(
                f"the set {self.name} cannot be read: {said} (a file of it can be given with "
                "--file)"
            ) from error

    def _file(self) -> Iterator[Row]:
        address = _GITHUB.format_map(self._asdict())
        with urlopen(address, timeout=_SECONDS) as answer:  # noqa: S310 (https, as above)
            return json_lines(self.name, answer.read(_MAX_BYTES))

    def _dataset(self) -> Iterator[Row]:
        require("bench", f"the set {self.name}", "datasets")
        from datasets import load_dataset

        yield from load_dataset(self.hub, self.config, split=self.split, revision=self.revision)


def find(name: str) -> Published:
    """Return a published set by NAME, or by NAME@COMMIT. Raises InvalidRequest for any other."""
    plain, at, commit = name.partition("@")
    rows = json.loads(_TABLE.read_text(encoding="utf-8"))
    known = {row["name"]: Published(**row) for row in rows}
    if plain not in known:
        raise InvalidRequest(f"no set is named {plain}: there are small, {', '.join(known)}")
    if at and not re.fullmatch("[0-9a-f]{40}", commit):
        raise InvalidRequest(f"{name}: a commit has 40 hexadecimal digits, got {commit!r}")
    return known[plain]._replace(revision=commit or known[plain].revision)


def json_lines(name: str, data: bytes) -> Iterator[Row]:
    """The rows of a file of JSON lines, which may be compressed by gzip. Raises InvalidRequest."""
    try:
        text = (gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data).decode()
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile) as error:
        raise InvalidRequest(f"{name} is no text in UTF-8: {error}") from error
    for number, line in enumerate(filter(str.strip, text.split("\n")), start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InvalidRequest(f"{name}, text {number} is no JSON: {error}") from error
        if not isinstance(row, dict):
            raise InvalidRequest(f"{name}, text {number} is no JSON object: got {row!r:.80}")
        yield row
