"""Checks right after a build that a fused artefact writes its target's own text: its rounds are
compared with its target's choices.

For Neuron this needs the instance. Not yet run on hardware.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from inference.artifact import Manifest
from inference.backends import Model, RoundModel
from inference.backends.fused import fused_part, load_fused
from inference.backends.neuron import Say
from inference.backends.neuron_loading import load_neuron
from inference.backends.neuron_sdk import has_device
from inference.backends.sequence import ModelSequence
from inference.decode import decode
from inference.engine.engine import Engine
from inference.engine.graph_rounds import GraphRounds
from inference.engine.local_session import LocalSession
from inference.errors import BadArtifact
from inference.order import Decode
from inference.sampling import SamplingParams
from inference.stats import DecodeStatistics
from inference.tree import TokenTree

_TOKENS = 32
_ENOUGH = 0.97
"""The least share of the rounds' tokens that must be the target's own choice after the same text.
In bfloat16 about 1 in 100 is a near-tie.
"""


def smoke(directory: Path, manifest: Manifest, say: Say) -> str:
    """What the artefact wrote, in words, or that it cannot run here. Raises BadArtifact when the
    text is not the target's.
    """
    if manifest.target == "cpu":
        return check_text(load_fused(directory, manifest), manifest)
    if not has_device():
        return "no Neuron device here: the artefact was built and not tried"
    from inference.backends.neuron_fused import NeuronFusedModel

    model = load_neuron(directory, manifest, say)
    assert isinstance(model, NeuronFusedModel), "a manifest with a draft"
    return check_text(model, manifest)


def check_text(model: RoundModel, manifest: Manifest) -> str:
    """Check texts after a random prompt: greedy and, where it has graphs for that, at temperature
    1.
    """
    tokens = min(_TOKENS, manifest.sequence_length // 2)
    sampled = fused_part(manifest).rounds[-1].sampled
    prompt = (
        np.random.default_rng(0)
        .integers(0, manifest.vocabulary, max(1, manifest.sequence_length // 8))
        .tolist()
    )
    statistics, equal, made = DecodeStatistics(), 0, 0
    for params in (SamplingParams(), *([SamplingParams(1.0, seed=7)] if sampled else [])):
        fused = _fused_text(model, manifest, prompt, params, tokens, statistics)
        equal += _own_choices(model, manifest, prompt, params, fused)
        made += tokens
    if equal < _ENOUGH * made:
        raise BadArtifact(
            f"only {equal} of {made} tokens of the artefact's rounds are its target's own choice"
        )
    how = "temperature 0 and 1" if sampled else "temperature 0"
    return (
        f"{equal} of {made} tokens as the target alone chooses, {statistics.acceptance_length:.2f} "
        f"a round (random prompt, {how})"
    )


def _fused_text(
    model: RoundModel,
    manifest: Manifest,
    prompt: list[int],
    params: SamplingParams,
    tokens: int,
    count: DecodeStatistics,
) -> list[int]:
    engine = Engine(
        model,
        sequence_length=manifest.sequence_length,
        max_tree_nodes=manifest.max_tree_nodes,
        vocabulary=manifest.vocabulary,
        graphs=GraphRounds(model),
    )
    made, session = list[int](), LocalSession(engine)
    for step in decode(prompt, params, session, Decode(len(prompt) + tokens, beside=True)):
        made += step.tokens
        count.count(step.proposers)
    session.close()
    return made


def _own_choices(
    model: Model, manifest: Manifest, prompt: list[int], params: SamplingParams, text: list[int]
) -> int:
    """How many of the text's tokens the target itself chooses at their positions."""
    sequence, equal = ModelSequence(model, 0, params), 0
    sequence.extend(prompt[:-1])
    before = [prompt[-1], *text[:-1]]
    for start in range(0, len(text), manifest.max_tree_nodes):
        chain = TokenTree.chain(before[start : start + manifest.max_tree_nodes])
        equal += int((sequence.choose(chain) == np.array(text[start : start + len(chain)])).sum())
        sequence.commit(chain, range(1, len(chain)))
    return equal
