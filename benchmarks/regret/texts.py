"""What is said in the study: the target's own continuations of three pieces of Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.regret.dial import Text
from benchmarks.regret.pair import PrefixModel
from benchmarks.regret.prefixes import Prefixes
from benchmarks.regret.stage import serve
from inference.fused import target_rounds
from inference.local import LocalVerifier
from inference.sampling import SamplingParams

TOKENS = 160
"""Of each text."""

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


def texts_of(
    prefixes: Prefixes,
    encode: Callable[[str], Sequence[int]],
    temperature: float,
    prompts: Sequence[str],
    tokens: int,
) -> tuple[Text, ...]:
    """What the target says after the prompts by itself: the texts that every arm has to make."""
    verifier = LocalVerifier(serve(PrefixModel(prefixes, 0.0), prefixes.vocabulary))
    said = []
    for index, prompt in enumerate(prompts):
        ids, params = (
            tuple(encode(prompt)),
            SamplingParams(temperature, seed=11 + index).on_the_wire(),
        )
        made = target_rounds(ids, params, verifier, tokens, frozenset())
        said.append(Text(ids, params, tuple(token for round_ in made for token in round_.tokens)))
        verifier.close()
    return tuple(said)
