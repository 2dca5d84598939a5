"""Role fused_target: a draft on the target's own host. It is a model of its own, or it is compiled
into the target's graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from grpc_comm.translate import Description
from inference.artifact import read_manifest
from inference.backends import Model, RoundModel
from inference.backends.eagle import EagleModel
from inference.backends.fused import fused_part
from inference.backends.sequence import MakeSequence, ModelSequence
from inference.backends.shared_cache import SharedCacheModel
from inference.backends.timed import feature_model
from inference.drafters.model_proposer import ROOM
from inference.engine.colocated_drafter import ColocatedDrafter
from inference.engine.graph_rounds import GraphRounds
from inference.engine.session import Session
from inference.engine.target_rows import led_by_row, on_target_row
from inference.errors import InvalidRequest, Mismatch
from inference.link_times import LinkTimes
from inference.planner.acceptance import read_acceptance
from inference.planner.knowledge import Knowledge
from inference.times import DraftTimes, LatencyModel
from outrider.draft_methods import find_draft
from outrider.models.loading import PREFILL_NODES
from outrider.models.precision import settled
from outrider.models.profiles import user_profiles
from outrider.models.sequence_length import Capacity
from outrider.options.groups import DraftModelOptions, ReductionOptions
from outrider.options.roles import FusedTargetRole


class Drafts(NamedTuple):
    """What drafts beside a target, and the description that tells clients of it."""

    description: Description
    drafter: ColocatedDrafter | None = None
    graphs: GraphRounds | None = None


def with_draft(options: FusedTargetRole, model: Model, description: Description) -> Drafts:
    """Add a draft with as many rows as the target. Raises Mismatch when the tokenizers differ.

    Where the target's graphs hold a draft, that draft is taken.
    """
    if isinstance(model, RoundModel):
        return _in_graph(options, model, description)
    found = find_draft(options, model)
    if found.tokenizer.fingerprint() != description.tokenizer_fingerprint:
        raise Mismatch(
            f"the tokenizers differ: the draft {found.name} has "
            f"{found.tokenizer.vocabulary} tokens, {description.model} "
            f"{description.vocabulary}; take a draft of the target's own family"
        )
    length = description.sequence_length
    found = settled(found, options, drafts=True)
    draft = found.load(
        options,
        Capacity(model.rows, length, ROOM, PREFILL_NODES),
    )
    times = user_profiles(options).draft(found, draft, length)
    known = partial(_knowledge, times, description)
    drafter = ColocatedDrafter(
        draft, known, room=ROOM, copies=options.copies, sequence=_sequences(draft, model)
    )
    told = replace(description, draft_model=found.name, draft_times=tuple(times.items()))
    return Drafts(told, drafter=drafter)


def _sequences(draft: Model, target: Model) -> Callable[[Session], MakeSequence]:
    """How texts lie on the draft's rows: what the draft reads of the target's."""
    if isinstance(draft, SharedCacheModel):
        return partial(on_target_row, ROOM)
    if isinstance(draft, EagleModel):
        keeper = feature_model(target)
        assert keeper is not None, "a head is loaded beside a target that keeps features"
        return partial(led_by_row, keeper)
    return lambda session: ModelSequence


def _knowledge(times: dict[int, float], description: Description) -> Knowledge:
    """Knowledge for a draft that has no link between itself and its target."""
    target = LatencyModel(dict(description.times))
    return Knowledge(DraftTimes(times), target, LinkTimes(), read_acceptance())


def _in_graph(options: FusedTargetRole, model: RoundModel, description: Description) -> Drafts:
    """Use the draft that is compiled into the target's graphs. A round has the shape that they were
    built for.
    """
    manifest = read_manifest(Path(options.artifact or ""))
    named = [*options.given(DraftModelOptions), *options.given(ReductionOptions)]
    if named:
        raise InvalidRequest(
            f"--artifact holds a draft, too ({fused_part(manifest).model}): leave out {named[0]}"
        )
    if model.shape.nodes > description.max_tree_nodes:
        raise InvalidRequest(
            f"--max_tree_nodes {description.max_tree_nodes}: a round of this artefact has "
            f"{model.shape.nodes} nodes"
        )
    name = f"{fused_part(manifest).model} (in the target's graph: {model.shape})"
    return Drafts(replace(description, draft_model=name), graphs=GraphRounds(model))
