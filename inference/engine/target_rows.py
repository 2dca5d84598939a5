"""Sequences of drafts that read what their target has of the text: each on the row of its
session.
"""

from __future__ import annotations

from functools import partial

from inference.backends import FeatureModel
from inference.backends.led_sequence import LedSequence, RowFeatures
from inference.backends.sequence import MakeSequence
from inference.backends.shared_sequence import SharedSequence, TargetRow
from inference.engine.session import Session


def on_target_row(own: int, session: Session) -> MakeSequence:
    """Make sequences that see the keys in the session's row of the target, wherever it is.

    own: slots of the draft in a row of its own
    """
    return partial(SharedSequence, target=partial(_row_of, session), own=own)


def led_by_row(target: FeatureModel, session: Session) -> MakeSequence:
    """Make sequences that read the features of the session's row of the target, wherever it is."""
    return partial(LedSequence, features=RowFeatures(target, partial(_row_of, session)))


def _row_of(session: Session) -> TargetRow:
    assert session.row is not None, "a session without a row is not drafted for"
    return TargetRow(session.row.index, session.row.slots)
