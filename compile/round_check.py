"""Checks an artefact's rounds: their output equals the target's own, and no bit of a session's
round depends on other sessions, nor of its root on what the draft has read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from compile.agreement import WAYS, Agreement, compare, written_states
from inference.backends import Chosen, Segment
from inference.backends.graphs.fused import FusedModel, draft_of, load_fused
from inference.backends.neuron.loading import load_neuron
from inference.backends.neuron.model import Say
from inference.backends.neuron.sdk import has_device
from inference.backends.sequence import ModelSequence
from inference.engine.colocated.graph_rounds import GraphRounds, RoundModel, blank_tree, read_answer
from inference.engine.engine import Engine
from inference.engine.sessions.local_session import LocalSession
from inference.errors import BadArtifact
from inference.files.artifact import Manifest, RoundBucket
from inference.loop.decode import decode
from inference.order import Decode
from inference.sampling import SamplingParams
from inference.tree.token_tree import TokenTree

_TOKENS = 32
"""Number of tokens that rounds generate for each entry of WAYS."""

Prompts = Sequence[list[int]]


def check_rounds(directory: Path, manifest: Manifest, say: Say) -> None:
    """Check the rounds of an unfinished artefact, and report each comparison. On a machine without
    the device, report that instead. Raises BadArtifact if the rounds are wrong.
    """
    if manifest.target == "cpu":
        model: RoundModel = load_fused(directory, manifest)
    elif has_device():
        loaded = load_neuron(directory, manifest, say)
        assert isinstance(loaded, RoundModel), "a manifest with a draft"
        model = loaded
    else:
        say("no Neuron device here: the rounds were built and not tried")
        return
    for agreement in round_agreements(model, manifest):
        if agreement.equal < agreement.total:
            raise BadArtifact(
                f"the artefact's rounds do not write its target's own text: {agreement}"
            )
        say(f"rounds, {agreement}")
    assert manifest.fused is not None, "a manifest with a draft"
    for bucket in manifest.fused.rounds:
        check_independence(model, bucket, manifest)


def round_agreements(model: RoundModel, manifest: Manifest) -> Iterator[Agreement]:
    """Compare the tokens that rounds generate after a random prompt with the target's choices at
    the same positions. Uses row 0.
    """
    assert manifest.fused is not None, "a manifest with a draft"
    tokens = min(_TOKENS, manifest.sequence_length // 2)
    (prompt,) = _prompts(manifest, 1, seed=0)
    for how, params in WAYS.items():
        if not params.greedy and not manifest.fused.rounds[-1].sampled:
            continue
        text = _text_of_rounds(model, manifest, prompt, params, tokens)
        sequence, before, chosen = ModelSequence(model, 0, params), [prompt[-1], *text[:-1]], []
        sequence.extend(prompt[:-1])
        for start in range(0, len(text), manifest.max_tree_nodes):
            chain = TokenTree.chain(before[start : start + manifest.max_tree_nodes])
            chosen.append(sequence.choose(chain))
            sequence.commit(chain, range(1, len(chain)))
        ours, expected = Chosen(np.array(text)), Chosen(np.concatenate(chosen))
        yield compare(how, [([ours], [expected])])


def _prompts(manifest: Manifest, count: int, seed: int) -> list[list[int]]:
    shape = (count, max(1, manifest.sequence_length // 8))
    prompts: list[list[int]]
    prompts = np.random.default_rng(seed).integers(0, manifest.vocabulary, shape).tolist()
    return prompts


def _text_of_rounds(
    model: RoundModel, manifest: Manifest, prompt: list[int], params: SamplingParams, tokens: int
) -> list[int]:
    engine = Engine(
        model,
        sequence_length=manifest.sequence_length,
        max_tree_nodes=manifest.max_tree_nodes,
        vocabulary=manifest.vocabulary,
        graphs=GraphRounds(model),
    )
    session, order = LocalSession(engine), Decode(len(prompt) + tokens, beside=True)
    text = [token for step in decode(prompt, params, session, order) for token in step.tokens]
    session.close()
    return text


def check_independence(model: RoundModel, bucket: RoundBucket, manifest: Manifest) -> None:
    """Raise BadArtifact if row 0's round depends on other rows in any bit, or the result at its
    root on what the draft has read, since candidates would then change the output. On a device only
    the returned answers are compared. Uses all rows.
    """
    prompts, neighbours = (_prompts(manifest, bucket.rows, seed) for seed in (1, 2))
    first, *rest = prompts
    answer, states = _round_of(model, bucket, prompts, prompts)
    mixed = [first, *neighbours[1:]]
    beside, states_beside = _round_of(model, bucket, mixed, mixed)
    redrafted, states_redrafted = _round_of(model, bucket, prompts, [neighbours[0], *rest])
    changed = ["answer"] if not np.array_equal(answer, beside) else []
    changed += [name for name in states if not torch.equal(states[name], states_beside[name])]
    if changed:
        raise BadArtifact(
            f"graph {bucket.name}: the rows beside a row change its {changed[0]}, which would not "
            "be lossless"
        )
    choices = [_choice_at_root(model, row_answer) for row_answer in (answer, redrafted)]
    changed = ["choice"] if choices[0] != choices[1] else []
    changed += [
        name
        for name in ("keys", "values")
        if states and not torch.equal(states[name][:, 0], states_redrafted[name][:, 0])
    ]
    if changed:
        raise BadArtifact(
            f"graph {bucket.name}: what is drafted below the root changes its {changed[0]}, which "
            "would not be lossless"
        )


@torch.no_grad()
def _round_of(
    model: RoundModel, bucket: RoundBucket, prompts: Prompts, drafted: Prompts
) -> tuple[np.ndarray, dict[str, Tensor]]:
    """Return row 0's answer to a round that fills the bucket's graph and, if they are in this
    process's memory, the keys and values that it wrote.

    drafted: what the draft reads instead of each prompt
    """
    segments = list[Segment]()
    for row, (prompt, drafted_prompt) in enumerate(zip(prompts, drafted, strict=True)):
        params = SamplingParams(1.0, seed=row) if bucket.sampled else SamplingParams()
        target, draft = (ModelSequence(side, row, params) for side in (model, model.draft))
        target.extend(prompt[:-1])
        draft.extend(drafted_prompt[:-1])
        tree = blank_tree(model.shape, prompt[-1])
        drafting, segment = draft.prepare(tree.prefix(model.shape.inner)), target.prepare(tree)
        wide = np.zeros((1, bucket.slots), dtype=np.bool_)  # to rule out smaller graphs
        wide[:, : segment.context.shape[1]] = segment.context
        segments.append(segment._replace(context=wide, beside=drafting))
    answer = model.rounds(segments)[0]
    if not isinstance(model, FusedModel):
        return answer, {}
    states = written_states(model, segments[:1])
    beside = written_states(model.draft, [draft_of(segments[0])])
    return answer, states | {f"draft {name}": tensor for name, tensor in beside.items()}


def _choice_at_root(model: RoundModel, answer: np.ndarray) -> int:
    tree, verdict = read_answer(blank_tree(model.shape), answer, model.shape.depth)
    return int(tree.tokens[verdict.path[0]]) if verdict.path else verdict.next_token
