"""Agreement of two models: how many choices of one equal another's after the same tokens.

A build of a fused artefact is checked by it, and a device; `agreements` serves whoever has a model
and one to hold it against.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from inference.accept import accept_match
from inference.artifact import Manifest
from inference.backends import Model
from inference.backends.fused import load_fused
from inference.backends.neuron import Say
from inference.backends.neuron_loading import load_neuron
from inference.backends.neuron_sdk import has_device
from inference.backends.sequence import ModelSequence
from inference.decode import decode
from inference.engine.engine import Engine
from inference.engine.graph_rounds import GraphRounds, RoundModel
from inference.engine.local_session import LocalSession
from inference.errors import BadArtifact
from inference.order import Decode
from inference.sampling import SamplingParams
from inference.tree import TokenTree

_TREES, _DEEPEST = 4, 8
"""Trees that are compared at each temperature, and their deepest node."""
_TOKENS = 32
"""Tokens of a text that rounds make at each temperature."""
ENOUGH = 0.97
"""The share of equal choices below which a model is called wrong. In bfloat16 about 1 in 100 is a
near-tie that rounding decides.
"""


@dataclass(frozen=True)
class Agreement:
    """The count of a model's choices that equal another's after the same tokens."""

    how: str  # the temperature, in words
    equal: int
    total: int
    first: str = ""  # the first that differs; empty where none does

    @property
    def is_enough(self) -> bool:
        return self.equal >= ENOUGH * self.total

    def __str__(self) -> str:
        first = f", first difference: {self.first}" if self.first else ""
        return f"{self.how}: {self.equal} of {self.total} choices equal{first}"


def agreements(
    model: Model, reference: Model, manifest: Manifest, *, sampled: bool = True
) -> Iterator[Agreement]:
    """Compare a model's choices with those of another, greedily and, where the model samples, at
    temperature 1. A RoundModel is compared by texts that its rounds make, others by random trees.

    Both have a row 0 that is free. The manifest says what the model takes.
    """
    compare = _compare_rounds if isinstance(model, RoundModel) else _compare_trees
    yield compare(model, reference, manifest, "greedy", SamplingParams())
    if sampled:
        yield compare(model, reference, manifest, "temperature 1", SamplingParams(1.0, seed=7))


def check_rounds(directory: Path, manifest: Manifest, say: Say) -> Iterator[str]:
    """Compare what an artefact's rounds write with what its target chooses, in words, or say that
    it cannot run here. Raises BadArtifact when the text is not the target's.
    """
    if manifest.target == "cpu":
        model: RoundModel = load_fused(directory, manifest)
    elif has_device():
        loaded = load_neuron(directory, manifest, say)
        assert isinstance(loaded, RoundModel), "a manifest with a draft"
        model = loaded
    else:
        yield "no Neuron device here: the artefact was built and not tried"
        return
    assert manifest.fused is not None, "a manifest with a draft"
    for found in agreements(model, model, manifest, sampled=manifest.fused.rounds[-1].sampled):
        if not found.is_enough:
            raise BadArtifact(f"the artefact's rounds do not write its target's own text: {found}")
        yield f"rounds, {found}"


def _compare_trees(
    model: Model, reference: Model, manifest: Manifest, how: str, params: SamplingParams
) -> Agreement:
    """Compare choices at every node of random trees on a growing text. The reference's verdicts
    decide what both commit.
    """
    generator, vocabulary = np.random.default_rng(5), manifest.vocabulary
    prompt = generator.integers(0, vocabulary, manifest.sequence_length // 2).tolist()
    sequences = [ModelSequence(each, 0, params) for each in (model, reference)]
    for sequence in sequences:
        sequence.extend(prompt)
    root, equal, total, first = int(generator.integers(vocabulary)), 0, 0, ""
    for number in range(_TREES):
        tree = random_tree(generator, root, manifest.max_tree_nodes, vocabulary)
        ours, theirs = (sequence.choose(tree) for sequence in sequences)
        differing = np.flatnonzero(ours != theirs)
        equal, total = equal + len(tree) - len(differing), total + len(tree)
        if differing.size and not first:
            node = int(differing[0])
            first = f"tree {number}, node {node}: token {ours[node]} for {theirs[node]}"
        verdict = accept_match(tree, theirs)
        for sequence in sequences:
            sequence.commit(tree, verdict.path)
        root = verdict.next_token
    return Agreement(how, equal, total, first)


def random_tree(
    generator: np.random.Generator, root: int, nodes: int, vocabulary: int
) -> TokenTree:
    """A tree of distinct tokens and random shape, at most 8 deep."""
    below = generator.choice(vocabulary, nodes - 1, replace=False)
    parents, depths = [-1], [0]
    for _ in range(nodes - 1):
        shallow = [index for index, depth in enumerate(depths) if depth < _DEEPEST]
        parents.append(int(generator.choice(shallow)))
        depths.append(depths[parents[-1]] + 1)
    return TokenTree(np.append(root, below), np.array(parents))


def _compare_rounds(
    model: Model, reference: Model, manifest: Manifest, how: str, params: SamplingParams
) -> Agreement:
    """Compare a text that rounds make after a random prompt with what the reference chooses at each
    of its positions.
    """
    assert isinstance(model, RoundModel), "rounds are what is compared"
    most = min(_TOKENS, manifest.sequence_length // 2)
    length = max(1, manifest.sequence_length // 8)
    prompt = np.random.default_rng(0).integers(0, manifest.vocabulary, length).tolist()
    text = _text_of_rounds(model, manifest, prompt, params, most)
    sequence, chosen = ModelSequence(reference, 0, params), list[int]()
    sequence.extend(prompt[:-1])
    before = [prompt[-1], *text[:-1]]
    for start in range(0, len(text), manifest.max_tree_nodes):
        chain = TokenTree.chain(before[start : start + manifest.max_tree_nodes])
        chosen += sequence.choose(chain).tolist()
        sequence.commit(chain, range(1, len(chain)))
    differing = [at for at, pair in enumerate(zip(text, chosen, strict=True)) if len({*pair}) > 1]
    first = "" if not differing else f"token {differing[0]} of the text"
    return Agreement(how, len(text) - len(differing), len(text), first)


def _text_of_rounds(
    model: RoundModel, manifest: Manifest, prompt: list[int], params: SamplingParams, most: int
) -> list[int]:
    engine = Engine(
        model,
        sequence_length=manifest.sequence_length,
        max_tree_nodes=manifest.max_tree_nodes,
        vocabulary=manifest.vocabulary,
        graphs=GraphRounds(model),
    )
    session, order = LocalSession(engine), Decode(len(prompt) + most, beside=True)
    text = [token for step in decode(prompt, params, session, order) for token in step.tokens]
    session.close()
    return text
