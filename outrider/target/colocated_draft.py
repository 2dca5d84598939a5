"""Role fused_target: a draft on the target's host, either a separate model or compiled into the
target's graphs.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from grpc_comm.translate import Description
from inference.backends import Model
from inference.backends.graphs.fused import fused_part
from inference.engine.colocated.drafter import ColocatedDrafter
from inference.engine.colocated.graph_rounds import GraphRounds, RoundModel
from inference.errors import InvalidRequest, Mismatch
from inference.files.artifact import read_manifest
from inference.loop.draft_tuning import TUNING
from inference.planner.acceptance import PairStats, read_acceptance
from inference.text.grammar import Grammars
from inference.text.tokenizer_settings import TokenizerSettings
from inference.times import Table, Times
from outrider.draft_methods import find_draft
from outrider.models.found_model import Capacity
from outrider.models.loading import PREFILL_NODES
from outrider.models.profiles import user_profiles
from outrider.options.groups import DraftModelOptions, QuantizationOptions
from outrider.options.roles import FusedTargetRole


class Drafts(NamedTuple):
    """A draft on the target's host (a drafter or graphs), and the description for clients."""

    description: Description
    drafter: ColocatedDrafter | None = None
    graphs: GraphRounds | None = None


def with_draft(
    options: FusedTargetRole, model: Model, description: Description, grammars: Grammars | None
) -> Drafts:
    """Add a draft with as many rows as the target has. Raises Mismatch if token ids differ.

    If the target's graphs contain a draft, that draft is used.

    grammars: for the target's tokenizer; None if the target does not support grammars
    """
    if isinstance(model, RoundModel):
        return _in_graph(options, model, description)
    checkpoint = find_draft(options, model)
    if checkpoint.tokenizer.settings.digest != description.settings_digest:
        settings = TokenizerSettings.read(description.tokenizer_settings)
        try:
            checkpoint = checkpoint.for_target(checkpoint.tokenizer.with_settings(settings))
        except Mismatch as error:
            raise Mismatch(
                f"the tokenizers differ: the draft {checkpoint.name} has "
                f"{checkpoint.tokenizer.vocabulary} tokens, {description.model} "
                f"{description.vocabulary} ({error}); take a draft of the target's own family"
            ) from error
    length, checkpoint = description.sequence_length, checkpoint.settled(options)
    draft = checkpoint.load(options, Capacity(model.rows, length, TUNING.room, PREFILL_NODES))
    times = checkpoint.times(user_profiles(options), draft, length)
    make_stats = partial(_pair_stats, times, description)
    draft = draft._replace(grammars=grammars)
    drafter = ColocatedDrafter(draft, make_stats, room=TUNING.room, copies=options.copies)
    return Drafts(replace(description, draft_model=checkpoint.name), drafter=drafter)


def _pair_stats(times: Table, description: Description) -> PairStats:
    """Return PairStats for a draft in the target's process, where the round trip is 0."""
    target = Times(dict(description.times))
    return PairStats(Times(times), target, read_acceptance())


def _in_graph(options: FusedTargetRole, model: RoundModel, description: Description) -> Drafts:
    """Use the draft in the target's graphs. The shape of a round is fixed by the build."""
    manifest = read_manifest(Path(options.artifact or ""))
    flags = [*options.changed(DraftModelOptions), *options.changed(QuantizationOptions)]
    if flags:
        raise InvalidRequest(
            f"--artifact contains a draft already ({fused_part(manifest).model}): remove {flags[0]}"
        )
    if model.shape.nodes > description.max_tree_nodes:
        raise InvalidRequest(
            f"--max_tree_nodes {description.max_tree_nodes}: a round of this artefact has "
            f"{model.shape.nodes} nodes"
        )
    name = f"{fused_part(manifest).model} (in the target's graph: {model.shape})"
    graphs = GraphRounds(model, dict(description.times))
    return Drafts(replace(description, draft_model=name), graphs=graphs)
