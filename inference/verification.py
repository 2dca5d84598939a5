"""How a tree is verified, which its kind decides: by the target's choices, by the target's probabilities where it was drawn at random, or
in the graph that drafts it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from inference.accept import Verdict, accept_match, accept_rejection
from inference.backends import Model, Probabilities, RoundModel, Segment
from inference.drawing import Chance, DrawnTree
from inference.errors import InvalidRequest
from inference.graph_tree import GraphTree
from inference.sampling import SamplingParams
from inference.tree import TokenTree

Ask = Callable[[Sequence[Segment]], Sequence[NDArray[Any]]]


def asking(model: Model, tree: TokenTree) -> Ask:
    """What is asked of the model to verify this tree: choices, [p] a segment, probabilities, [p, V], or rounds.

    Raises InvalidRequest for a tree drawn at random, if the model gives no probabilities, or one of a graph that the model does not have.
    """
    if isinstance(tree, DrawnTree):
        return probabilities_of(model).distributions
    if isinstance(tree, GraphTree):
        return rounds_of(model).rounds
    return model.choose


def with_draft(tree: TokenTree, segment: Segment) -> Segment:
    """The tree's share of a call, with the draft's where the call drafts as well."""
    return segment._replace(draft=tree.draft) if isinstance(tree, GraphTree) else segment


def accept(tree: TokenTree, answer: NDArray[Any], params: SamplingParams, position: int) -> Verdict:
    """What becomes of the tree, by the model's answer; `position` is that of the root's children."""
    if isinstance(tree, DrawnTree):
        return accept_rejection(tree, answer, position, Chance(params.seed))
    if isinstance(tree, GraphTree):
        return tree.filled(answer)
    return accept_match(tree, answer)


def probabilities_of(model: Model) -> Probabilities:
    """The model as one that gives probabilities; raises InvalidRequest if it does not."""
    if not isinstance(model, Probabilities):
        given = f"this one ({type(model).__name__}) gives choices only, as compiled models do"
        raise InvalidRequest(
            f"classic acceptance needs the probabilities of both models: {given}; serve it uncompiled on cpu or cuda, or accept by match"
        )
    return model


def rounds_of(model: Model) -> RoundModel:
    """The model as one whose graphs draft; raises InvalidRequest if they do not."""
    if not isinstance(model, RoundModel):
        raise InvalidRequest(
            f"this target ({type(model).__name__}) has no draft in its graphs: build one with python -m compile --fused"
        )
    return model
