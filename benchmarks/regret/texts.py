"""Texts of the study: the target's own continuations of pieces of Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

from benchmarks.regret.pair import PrefixModel, Text
from benchmarks.regret.prefixes import Prefixes
from benchmarks.regret.stage import serve
from inference.decode import decode
from inference.engine.local_session import LocalSession
from inference.order import Decode
from inference.sampling import SamplingParams

TOKENS = 160
"""Tokens of each text."""

SEED = 11
"""Seed of the first text; the ones after it have the next ones."""

PROMPTS = (
    '''def parse_header(line):
    """Split a header into its name and value.

    Raises ValueError when there is no colon.
    """
    name, sep, value = line.partition(':')
    if not''',
    '''import os
import sys
import argparse


class Archive:
    """A file that holds other files."""

    def __init__(self, path, mode='r'):
        self.path = path
        if mode not in''',
    '''def walk(top, topdown=True, onerror=None):
    """Generate the names of files in a directory tree.

    For each directory, yields a tuple of three values.
    """
    try:
        entries =''',
)

HELD_OUT = (
    '''class Counter:
    """Counts how often each word was seen."""

    def __init__(self, words=()):
        self.counts = {}
        for word in words:
            self.add(word)

    def add(self, word, times=1):
''',
    '''def main(argv=None):
    """Print the lines of all files that hold a pattern."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument('pattern')
    parser.add_argument('files', nargs='*')
    parser.add_argument(''',
    """import unittest
from queue import Empty, Queue


class QueueTest(unittest.TestCase):
    def setUp(self):
        self.queue = Queue(maxsize=2)

    def test_get_from_an_empty_queue(self):
        with self.assertRaises(Empty):
            self.queue.get(block=False)

    def test_""",
    '''class Lock:
    """A lock that tasks wait for in the order in which they came."""

    async def acquire(self):
        while self._locked:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
''',
    """# Days between two dates, leap years counted.

MONTHS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]


def is_leap(year):
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def days_before_month(year, month):
    """,
    '''def read_varint(stream):
    """Read an unsigned integer of seven bits a byte, the lowest first."""
    result = shift = 0
    while True:
        byte = stream.read(1)
        if not byte:
            raise EOFError('end of file in a number')
        result |=''',
)
"""Nothing was tuned on what is said after these."""

HELD_OUT_SEEDS = (101, 201, 301)
"""Seeds of the first text of each reading of HELD_OUT; at temperature 0 all are the same."""


def texts_of(
    prefixes: Prefixes,
    encode: Callable[[str], Sequence[int]],
    temperature: float,
    prompts: Sequence[str],
    tokens: int,
    seed: int = SEED,
) -> tuple[Text, ...]:
    """Texts that the target makes of the prompts by itself: those that every arm has to make."""
    engine, said = serve(PrefixModel(prefixes, 0.0), prefixes.vocabulary), []
    for index, prompt in enumerate(prompts):
        ids = tuple(encode(prompt))
        params = SamplingParams(temperature, seed=seed + index).on_the_wire()
        with closing(LocalSession(engine)) as session:
            steps = decode(ids, params, session, Decode(len(ids) + tokens))
            said.append(Text(ids, params, tuple(token for step in steps for token in step.tokens)))
    return tuple(said)
