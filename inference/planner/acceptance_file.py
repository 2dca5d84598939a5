"""Files with learned acceptance: the shipped prior, and a file for each pair of models."""

from __future__ import annotations

import json
from pathlib import Path

from inference.errors import InvalidRequest
from inference.files.json_file import Json, read_json
from inference.files.writing import write_whole
from inference.planner.acceptance import (
    KINDS,
    VERSION,
    AcceptanceModel,
    HitRates,
    Law,
    Laws,
)
from inference.planner.child_features import (
    COPY_FEATURES,
    JOINT_FEATURES,
    RANK_FEATURES,
)

SHIPPED = Path(__file__).parents[1] / "data" / "acceptance.json"


def read_acceptance(path: Path = SHIPPED) -> AcceptanceModel:
    """Read an acceptance model from a file, by default the shipped one. Raises InvalidRequest."""
    return read_model(read_json(path, InvalidRequest))


def write_acceptance(model: AcceptanceModel, path: Path) -> None:
    """Write an acceptance model to a file, atomically."""
    write_whole(path, json.dumps(model.to_record()) + "\n")


def read_model(record: Json) -> AcceptanceModel:
    """Read a model in the format of AcceptanceModel.to_record(), ignoring other fields.

    Raises InvalidRequest.
    """
    version, features = record.field("version"), record.field("features")
    if version.value != VERSION or features.value != list(RANK_FEATURES):
        version.refuse(f"an acceptance record of version {VERSION}")
    copying = record.field("copying")
    ranks = record.field("laws")
    sampled, greedy = (read_law(ranks.field(kind), len(RANK_FEATURES)) for kind in KINDS)
    laws = Laws(
        (sampled, greedy),
        read_law(copying.field("copies"), len(COPY_FEATURES)),
        read_law(copying.field("joint"), len(JOINT_FEATURES)),
    )
    rates = record.field("rates")
    tries, hits = (read_numbers(rates.field(name)) for name in ("tries", "hits"))
    return AcceptanceModel(laws, rates.make(HitRates, tries, hits))


def read_law(raw: Json, width: int) -> Law:
    """Read a law of `width` features in the format of Law.to_record(). Raises InvalidRequest."""
    weights, precision = raw.field("weights"), raw.field("precision").map(read_numbers)
    if len(read_numbers(weights)) != width:
        weights.refuse(f"{width} numbers")
    if any(len(row) != width for row in precision) or len(precision) != width:
        raw.field("precision").refuse(f"a square of {width}")
    worth = raw.field("worth").number()
    return raw.make(Law, read_numbers(weights), precision, worth)


def read_numbers(raw: Json) -> tuple[float, ...]:
    """Read a list of numbers. Raises `raw.refusal` for anything else."""
    return raw.map(Json.number)
