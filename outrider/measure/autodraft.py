"""Reads the XML of an AutoDraft experiment as a file of runs. See docs/runs.md for what each tag
becomes. The file's owner may be anybody, so definitions of entities are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from inference.command import nearest, say
from inference.errors import InvalidRequest
from inference.extras import require
from inference.flags.group import flags_of
from outrider.options.roles import FusedClientRole

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
"""Tags that are one flag of every run."""

OF_RUNS = {
    "TARGET_HOST", "TARGET_PORT", "BASE_MODEL_PATH", "BENCHES_CSV", "OBJECTIVE_METRIC",
    "OBJECTIVE_METRICS_CSV", "AUTODRAFT_CS_LIST", "NON_TREE_DEPTH", "FIXED_TREE_NODES",
    "FIXED_TREE_DEPTH", "TARGET_QUANTIZATION", "DRAFT_QUANTIZATION",
}  # fmt: skip
"""Tags that are read by name."""

IGNORED = {
    "DRAFT_DEVICE_NAME", "SERVER_NAME", "TOKENIZER_PATH", "PROPOSED_NODES", "PROPOSED_MAX_DEPTH",
    "DRAFT_PROFILE_WIDTH_LIST", "TARGET_PROFILE_NODE_LIST", "TARGET_PROFILE_MODEL_CALLS_PER_COUNT",
    "DRAFT_PROFILE_MODEL_CALLS_PER_COUNT", "ENABLE_GPU_MONITOR", "GPU_MONITOR_INTERVAL",
    "DRAFT_PER_HOUR_COST", "ACCEPT_LENGTH_MARGIN", "FIXED_TREE_WIDTH", "NON_TREE_WIDTH",
    "NON_TREE_NODES", "SLEEP_SECONDS", "SKIP_SLEEP",
}  # fmt: skip
"""Tags without an effect here: names, and what is measured without being asked for."""

DEFAULTS = {"SEED": "4", "MAX_NEW_TOKENS": "256", "BENCHES_CSV": "mt_bench"}
"""Values that AutoDraft takes where a file says nothing."""

QUANTIZATIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "8bit": {"draft_quantization": "int8"},
    "4bit": {"draft_quantization": "int4"},
}
"""Flags of every run by the draft's quantization."""

Tags = Mapping[str, str]

ALGORITHMS: dict[str, Callable[[Tags], dict[str, Any]]] = {
    "ENABLE_SERVER_ONLY_AR": lambda tags: {"preset": "vanilla"},
    "ENABLE_SERVER_ONLY_AUTODRAFT": lambda tags: {"role": "fused_client"},
    "ENABLE_HYBRID_NON_TREE_SD": lambda tags: {
        "preset": "classic_sd",
        "gamma": tags.get("NON_TREE_DEPTH", "15"),
    },
    "ENABLE_HYBRID_OPT_TREE": lambda tags: {
        "preset": "tree_sd",
        "tree_nodes": tags.get("FIXED_TREE_NODES", "150"),
        "tree_depth": tags.get("FIXED_TREE_DEPTH", "15"),
    },
    "ENABLE_HYBRID_AUTODRAFT": lambda tags: {"preset": "adaptive"} | _weighed(tags),
}
"""Runs by the tag that asks for each."""


def read_autodraft(path: Path) -> dict[str, Any]:
    """The runs of an XML file. Raises InvalidRequest, which names file and tag, and MissingExtra
    without defusedxml.
    """
    try:
        tags = DEFAULTS | _tags(path)
        runs = [_run(name, tags) for name in ALGORITHMS if _enabled(name, tags)]
        flags = _flags(path, tags)
    except InvalidRequest as error:
        raise InvalidRequest(f"{path}: {error}") from error
    return {"flags": flags, "runs": runs}


def _tags(path: Path) -> dict[str, str]:
    """Text by tag. <parameter name="SEED">4</parameter> is the same as <SEED>4</SEED>."""
    require("xml", "XML")
    from defusedxml.common import DefusedXmlException
    from defusedxml.ElementTree import ParseError, parse

    try:
        elements = parse(path, forbid_dtd=True).iter()
        found = {
            element.get("name", element.tag).upper(): (element.text or "").strip()
            for element in elements
            if not len(element)
        }
    except DefusedXmlException as error:
        raise InvalidRequest(
            "a DTD or an entity is defined: text and tags alone are read"
        ) from error
    except (OSError, ValueError, LookupError, ParseError) as error:
        raise InvalidRequest(f"cannot be read as XML: {error}") from error
    known = {*FLAGS, *OF_RUNS, *IGNORED, *ALGORITHMS}
    for name, text in found.items():
        if text and name not in known and text != "0":
            raise InvalidRequest(
                f"{name} {text[:40]}: nothing here does that{nearest(name, known)}"
            )
    unused = sorted(name for name in found if name in IGNORED)
    if unused:
        say(f"note: {path}: {', '.join(unused)} have no effect here")
    return {name: text for name, text in found.items() if text}


def _flags(path: Path, tags: Tags) -> dict[str, Any]:
    """The flags of every run. A benchmark NAME is NAME.txt beside the file, a prompt a line."""
    served = tags.get("TARGET_QUANTIZATION", "none")
    if served != "none":
        raise InvalidRequest(
            f"TARGET_QUANTIZATION {served}: none is needed, a target is what its server loads"
        )
    drafted = tags.get("DRAFT_QUANTIZATION", "none")
    if drafted not in QUANTIZATIONS:
        raise InvalidRequest(
            f"DRAFT_QUANTIZATION {drafted}: one of {', '.join(QUANTIZATIONS)} is needed"
        )
    flags: dict[str, Any] = {flag: tags[name] for name, flag in FLAGS.items() if name in tags}
    flags |= QUANTIZATIONS[drafted]
    if "TARGET_PORT" in tags and "TARGET_HOST" not in tags:
        raise InvalidRequest(f"TARGET_PORT {tags['TARGET_PORT']}: TARGET_HOST is needed, too")
    if "TARGET_HOST" in tags:
        flags["target_host"] = f"{tags['TARGET_HOST']}:{tags.get('TARGET_PORT', '26001')}"
    benches = [bench.strip() for bench in tags["BENCHES_CSV"].split(",")]
    files = [str(path.parent / f"{bench}.txt") for bench in benches]
    return flags | {"prompt_text": files if len(files) > 1 else files[0]}


def _enabled(name: str, tags: Tags) -> bool:
    value = tags.get(name, "0")
    if value not in ("0", "1"):
        raise InvalidRequest(f"{name} {value}: 0 or 1 is needed")
    return value == "1"


def _run(algorithm: str, tags: Tags) -> dict[str, Any]:
    """The flags of an algorithm's runs."""
    run = {"name": algorithm.removeprefix("ENABLE_").lower()} | ALGORITHMS[algorithm](tags)
    if run.get("role") == "fused_client":
        unused = {*FLAGS.values(), "draft_quantization"} - set(flags_of(FusedClientRole))
        run |= dict.fromkeys(unused, None) | {"target_model": tags.get("BASE_MODEL_PATH")}
    return run


def _weighed(tags: Tags) -> dict[str, Any]:
    """--objective and --cs: 0 to 1 there, 0 to 100 here."""
    metrics = tags.get("OBJECTIVE_METRICS_CSV", tags.get("OBJECTIVE_METRIC", "total_cost"))
    words = tags.get("AUTODRAFT_CS_LIST", "0 0.5 1").split()
    try:
        knobs = [f"{100 * float(word):g}" for word in words]
    except ValueError as error:
        raise InvalidRequest(
            f"AUTODRAFT_CS_LIST {' '.join(words)}: numbers from 0 to 1 are needed"
        ) from error
    return {"objective": [metric.strip() for metric in metrics.split(",")], "cs": knobs}
