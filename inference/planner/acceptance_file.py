"""Files of the learned acceptance of pairs of models: the shipped prior, and one for each pair."""

from __future__ import annotations

import json
from pathlib import Path

from inference.errors import InvalidRequest
from inference.files.json_file import Json, read_json
from inference.files.writing import write_whole
from inference.planner.acceptance import (
    KINDS,
    OFFSETS,
    RANKS,
    STEEPEST,
    VERSION,
    AcceptanceModel,
    HitRates,
    Law,
    Laws,
)
from inference.planner.child_features import (
    COPY_FEATURES,
    JOINT_FEATURES,
    MASK_FEATURES,
    RANK_FEATURES,
    SPAN,
)

SHIPPED = Path(__file__).parents[1] / "data" / "acceptance.json"


def read_acceptance(path: Path = SHIPPED) -> AcceptanceModel:
    """Read the model from a file, by default the shipped one. Raises InvalidRequest."""
    return read_model(read_json(path, InvalidRequest))


def write_acceptance(model: AcceptanceModel, path: Path) -> None:
    """Write a model to a file, atomically."""
    write_whole(path, json.dumps(model.to_record()) + "\n")


def read_model(record: Json) -> AcceptanceModel:
    """Read what AcceptanceModel.to_record() described, and ignore other fields.

    Raises InvalidRequest.
    """
    version, features = record.field("version"), record.field("features")
    if version.value != VERSION or features.value != list(RANK_FEATURES):
        version.refuse(f"an acceptance record of version {VERSION}")
    copying, masks = record.field("copying"), record.field("guessing")
    laws = Laws(
        _read_laws(record.field("laws"), len(RANK_FEATURES)),
        _read_laws(masks.field("laws"), len(MASK_FEATURES)),
        read_law(copying.field("copies"), len(COPY_FEATURES), SPAN),
        read_law(copying.field("joint"), len(JOINT_FEATURES)),
    )
    return AcceptanceModel(
        laws, read_rates(record.field("rates"), RANKS), read_rates(masks, OFFSETS)
    )


def _read_laws(raw: Json, width: int) -> tuple[Law, Law]:
    """Read a law for each kind of decoding."""
    sampled, greedy = (read_law(raw.field(kind), width) for kind in KINDS)
    return sampled, greedy


def read_law(raw: Json, width: int, steepest: float = STEEPEST) -> Law:
    """Read what Law.to_record() described, of this many features. Raises InvalidRequest."""
    weights, precision = raw.field("weights"), raw.field("precision").each(read_numbers)
    if len(read_numbers(weights)) != width:
        weights.refuse(f"{width} numbers")
    if any(len(row) != width for row in precision) or len(precision) != width:
        raw.field("precision").refuse(f"a square of {width}")
    worth = raw.field("worth").number()
    return raw.make(Law, read_numbers(weights), precision, worth, steepest)


def read_rates(raw: Json, count: int) -> HitRates:
    """Read what HitRates.to_record() described."""
    tries, hits = (read_numbers(raw.field(name)) for name in ("tries", "hits"))
    return raw.make(HitRates, tries, hits, count)


def read_numbers(raw: Json) -> tuple[float, ...]:
    """Read a list of numbers. Raises the file's error for anything else."""
    return raw.each(Json.number)
