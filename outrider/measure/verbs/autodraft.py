"""Converts an AutoDraft experiment (XML) to runs. docs/runs.md maps its tags to flags. The file is
untrusted, so entity definitions are rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inference.command import say
from inference.errors import InvalidRequest, require

FLAGS = {
    "DEVICE_MAP": "device",
    "DRAFT_MODEL_PATH": "draft_model",
    "TEMPERATURE": "temperature",
    "SEED": "seed",
    "MAX_NEW_TOKENS": "max_new_tokens",
    "TARGET_PER_HOUR_COST": "usd_per_hour",
    "DRAFT_ELECTRICITY_COST_PER_KWH": "usd_per_kwh",
    "USER_COMM_COST_PER_GB": "usd_per_gb_up",
    "CLOUD_OUTBOUND_COST_PER_GB": "usd_per_gb_down",
}
"""Tags, and the flag of every run that each tag sets."""

DEFAULTS = {
    "SEED": "4", "MAX_NEW_TOKENS": "256", "BENCHES_CSV": "mt_bench", "TARGET_HOST": "",
    "TARGET_PORT": "26001", "NON_TREE_DEPTH": "15",
    "FIXED_TREE_NODES": "150", "FIXED_TREE_DEPTH": "15", "OBJECTIVE_METRICS_CSV": "total_cost",
    "AUTODRAFT_CS_LIST": "0 0.5 1", "TARGET_QUANTIZATION": "none", "DRAFT_QUANTIZATION": "none",
}  # fmt: skip
"""AutoDraft's defaults for missing tags; an empty string means no value."""

QUANTIZATIONS = {"none": None, "8bit": "int8", "4bit": "int4"}

Tags = Mapping[str, str]


def read_autodraft(path: Path) -> dict[str, Any]:
    """Read the runs of an XML file. Raises InvalidRequest, naming the file and the tag, and
    MissingExtra without defusedxml.
    """
    try:
        stated = _tags(path)
        tags = DEFAULTS | stated
        algorithms = _algorithms(tags)
        unused = sorted(stated.keys() - {*FLAGS, *DEFAULTS, *algorithms})
        if unused:
            say(f"note: {path}: {', '.join(unused)} have no effect here")
        runs = []
        for name, flags in algorithms.items():
            if (value := tags.get(name, "0")) not in ("0", "1"):
                raise InvalidRequest(f"{name} {value}: 0 or 1 is needed")
            runs += [{"name": name.removeprefix("ENABLE_").lower(), **flags}] * (value == "1")
        return {"flags": _flags(path, tags), "runs": runs}
    except InvalidRequest as error:
        raise InvalidRequest(f"{path}: {error}") from error


def _tags(path: Path) -> dict[str, str]:
    """Read each tag's text. <parameter name="SEED">4</parameter> is the same as <SEED>4</SEED>."""
    require("xml", "XML")
    from defusedxml.common import DefusedXmlException
    from defusedxml.ElementTree import ParseError, parse

    try:
        leaves = [element for element in parse(path, forbid_dtd=True).iter() if not len(element)]
    except DefusedXmlException as error:
        words = "a DTD or an entity is defined: text and tags alone are read"
        raise InvalidRequest(words) from error
    except (OSError, ValueError, LookupError, ParseError) as error:
        raise InvalidRequest(f"cannot be read as XML: {error}") from error
    texts = {leaf.get("name", leaf.tag).upper(): (leaf.text or "").strip() for leaf in leaves}
    return {name: text for name, text in texts.items() if text}


def _algorithms(tags: Tags) -> dict[str, dict[str, Any]]:
    """Return each algorithm's flags. AutoDraft's weights of 0 to 1 become 0 to 100 for --cs."""
    knobs = tags["AUTODRAFT_CS_LIST"].split()
    try:
        knobs = [f"{100 * float(word):g}" for word in knobs]
    except ValueError as error:
        words = f"AUTODRAFT_CS_LIST {' '.join(knobs)}: numbers from 0 to 1 are needed"
        raise InvalidRequest(words) from error
    metrics = tags.get("OBJECTIVE_METRIC", tags["OBJECTIVE_METRICS_CSV"]).split(",")
    tree = {"tree_nodes": tags["FIXED_TREE_NODES"], "tree_depth": tags["FIXED_TREE_DEPTH"]}
    goal = {"objective": [metric.strip() for metric in metrics], "cs": knobs}
    return {
        "ENABLE_SERVER_ONLY_AR": {"preset": "vanilla", "draft_quantization": None},
        "ENABLE_SERVER_ONLY_AUTODRAFT": {"preset": "eagle_sd", "draft_quantization": None},
        "ENABLE_HYBRID_NON_TREE_SD": {"preset": "classic_sd", "gamma": tags["NON_TREE_DEPTH"]},
        "ENABLE_HYBRID_OPT_TREE": {"preset": "tree_sd", **tree},
        "ENABLE_HYBRID_AUTODRAFT": {"preset": "adaptive", **goal},
    }


def _flags(path: Path, tags: Tags) -> dict[str, Any]:
    """Return every run's flags. Benchmark NAME has its prompts in NAME.txt, next to the file."""
    if (served := tags["TARGET_QUANTIZATION"]) != "none":
        raise InvalidRequest(
            f"TARGET_QUANTIZATION {served}: none is needed, a target is what its server loads"
        )
    flags: dict[str, Any] = {flag: tags[name] for name, flag in FLAGS.items() if name in tags}
    drafted = tags["DRAFT_QUANTIZATION"]
    flags["draft_quantization"] = QUANTIZATIONS.get(drafted, drafted)
    if tags["TARGET_HOST"]:
        flags["target_host"] = f"{tags['TARGET_HOST']}:{tags['TARGET_PORT']}"
    names = tags["BENCHES_CSV"].split(",")
    files = [str(path.parent / f"{name.strip()}.txt") for name in names]
    return flags | {"prompt_text": files if len(files) > 1 else files[0]}
