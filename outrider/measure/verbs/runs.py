"""`outrider runs`: executes the runs of a file in order, and stores their results.

A flag with a list of values is a sweep, with a run for each value. The XML of an AutoDraft
experiment is converted to runs (docs/runs.md maps its tags to flags); it is untrusted, so entity
definitions are rejected.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from inference.command import FAILED, INTERRUPTED, nearest, printable, say
from inference.errors import InvalidRequest, OutriderError, require
from inference.flags.command_line import ValueSource, read_yaml
from inference.flags.group import brief
from outrider.measure.verbs.options import RunsOptions
from outrider.options.commands import from_file
from outrider.options.roles import ROLES, TextRole
from outrider.terminal.summary import PROFILE, aligned
from outrider.text.prompts import read_prompts

FLAGS = {
    "DEVICE_MAP": "device",
    "DRAFT_MODEL_PATH": "draft_model",
    "TEMPERATURE": "temperature",
    "SEED": "seed",
    "MAX_NEW_TOKENS": "max_new_tokens",
    "TARGET_PER_HOUR_COST": "usd_per_hour",
    "DRAFT_ELECTRICITY_COST_PER_KWH": "usd_per_kwh",
}
"""Tags, and the flag of every run that each tag sets."""

TRAFFIC = ("USER_COMM_COST_PER_GB", "CLOUD_OUTBOUND_COST_PER_GB")
"""Prices of the user's and the cloud's traffic, which together are --usd_per_gb."""

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
        unused = sorted(stated.keys() - {*FLAGS, *TRAFFIC, *DEFAULTS, *algorithms})
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
    knobs = [f"{100 * weight:g}" for weight in _numbers(tags, "AUTODRAFT_CS_LIST")]
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


def _numbers(tags: Tags, name: str) -> list[float]:
    """Read the numbers of a tag. Raises InvalidRequest."""
    words = tags.get(name, "").split()
    try:
        return [float(word) for word in words]
    except ValueError as error:
        needed = "numbers such as 0.5 are needed"
        raise InvalidRequest(f"{name} {' '.join(words)}: {needed}") from error


def _flags(path: Path, tags: Tags) -> dict[str, Any]:
    """Return every run's flags. Benchmark NAME has its prompts in NAME.txt, next to the file."""
    if (served := tags["TARGET_QUANTIZATION"]) != "none":
        raise InvalidRequest(
            f"TARGET_QUANTIZATION {served}: none is needed, a target is what its server loads"
        )
    flags: dict[str, Any] = {flag: tags[name] for name, flag in FLAGS.items() if name in tags}
    if prices := [price for name in TRAFFIC for price in _numbers(tags, name)]:
        flags["usd_per_gb"] = sum(prices)
    drafted = tags["DRAFT_QUANTIZATION"]
    flags["draft_quantization"] = QUANTIZATIONS.get(drafted, drafted)
    if tags["TARGET_HOST"]:
        flags["target_host"] = f"{tags['TARGET_HOST']}:{tags['TARGET_PORT']}"
    names = tags["BENCHES_CSV"].split(",")
    files = [str(path.parent / f"{name.strip()}.txt") for name in names]
    return flags | {"prompt_text": files if len(files) > 1 else files[0]}


TEXT_ROLES = {name: model for name, model in ROLES.items() if issubclass(model, TextRole)}
"""Roles that a run may have: the roles that generate text."""

NOT_IN_RUNS = ("config", "profile", "debug")
"""Flags of TEXT_ROLES that a run may not set."""

MAX_RUNS = 1000
"""Maximum number of runs in a file."""

Flags: TypeAlias = dict[str, Any]
"""Values by flag name. A list of values is a sweep, with a run for each value."""


class NamedRun(NamedTuple):
    """A run and its name."""

    name: str  # the name in the file and the values of a sweep, e.g. curve cs=50
    options: TextRole

    @property
    def directory(self) -> str:
        """The name, in which - replaces characters that are awkward in file names."""
        return re.sub(r"[^\w.=-]+", "-", self.name).strip("-.")[:120]


def run(options: RunsOptions) -> int:
    """Execute the runs. Returns 0 if all runs succeeded, else the exit code of a failed run."""
    runs = read_runs(Path(options.file))
    if options.dry_run:
        print(*(run.name for run in runs), sep="\n")
        return 0
    code, rows = 0, list[list[str]]()
    for number, entry in enumerate(runs, 1):
        say(f"run {number} of {len(runs)}: {entry.name}")
        directory = Path(options.out) / entry.directory
        ended = _generate(entry, directory)
        code = max(code, ended)
        if ended == INTERRUPTED:
            break
        if not ended:
            rows.append([*_figures(directory), entry.name])
    say("\n".join(aligned(("texts", "tokens", "tokens/s", "tokens a forward pass", "run"), rows)))
    return code


def _generate(entry: NamedRun, directory: Path) -> int:
    """Execute a run. Returns its exit code, also on failure, so that other runs continue."""
    from outrider.cli import run_role

    try:
        return run_role(entry.options.replace(profile=str(directory)))
    except OutriderError as error:
        say(f"error: {entry.name}: {printable(str(error))}")
        return FAILED


def _figures(directory: Path) -> list[str]:
    """Read a run's number of outputs, tokens, tokens per second and tokens per forward pass."""
    texts = json.loads((directory / PROFILE).read_text(encoding="utf-8"))
    tokens = sum(len(text["token_ids"]) for text in texts)
    rates = [sum(text[name] for text in texts) for name in ("seconds", "forwards")]
    ratios = [f"{tokens / rate:.2f}" if rate else "-" for rate in rates]
    return [str(len(texts)), str(tokens), *ratios]


def read_runs(path: Path) -> list[NamedRun]:
    """Read all runs of a YAML file, or of an AutoDraft experiment (.xml), without starting any.

    Raises InvalidRequest with a message of one line that names the file and the place in it.
    """
    content = read_autodraft(path) if path.suffix == ".xml" else read_yaml(path, str(path))
    flag_sets = _checked(path, content)
    if sum(math.prod(map(len, _lists(flags).values())) for flags in flag_sets) > MAX_RUNS:
        raise InvalidRequest(f"{path}: its lists make more than {MAX_RUNS} runs: give fewer values")
    runs = [run for index, flags in enumerate(flag_sets) for run in _swept(path, index, flags)]
    names = [run.directory for run in runs]
    for run in runs:
        if not run.directory:
            raise InvalidRequest(f"{path}: a run is called {run.name}: a letter or digit is needed")
        if names.count(run.directory) > 1:
            raise InvalidRequest(f"{path}: two runs are called {run.name}: names that differ")
    return runs


def _checked(path: Path, content: Any) -> list[Flags]:
    """Return the flags of each run, common flags included. Raises InvalidRequest on bad input."""
    content = content if isinstance(content, dict) else {}
    common, runs = content.get("flags", {}), content.get("runs")
    if not isinstance(runs, list) or not runs:
        raise InvalidRequest(f"{path}: `runs:` with a list of runs is needed, got {brief(runs)}")
    if unknown := content.keys() - {"flags", "runs"}:
        raise InvalidRequest(f"{path}: {unknown.pop()}: flags and runs are needed, nothing else")
    places = {"flags": common} | {f"runs[{index}]": run for index, run in enumerate(runs)}
    for place, flags in places.items():
        if not isinstance(flags, dict):
            needed = f"lines such as `gamma: 4` are needed, got {brief(flags)}"
            raise InvalidRequest(f"{path}: {place}: {needed}")
        for name, value in flags.items():
            values = value if isinstance(value, list) else [value]
            plain = all(isinstance(item, bool | int | float | str | None) for item in values)
            if not values or not plain:
                needed = f"a value, or a list of values to sweep, is needed, got {brief(value)}"
                raise InvalidRequest(f"{path}: {place}.{name}: {needed}")
    return [
        {str(name).replace("-", "_"): value for name, value in [*common.items(), *run.items()]}
        for run in runs
    ]


def _lists(flags: Flags) -> dict[str, list[Any]]:
    return {name: values for name, values in flags.items() if isinstance(values, list)}


def _swept(path: Path, index: int, flags: Flags) -> Iterator[NamedRun]:
    """Yield a run for each combination of values from all lists; the last list changes fastest."""
    name, lists = str(flags.pop("name", f"run-{index + 1}")), _lists(flags)
    for values in product(*lists.values()):
        chosen = dict(zip(lists, values, strict=True))
        words = [name, *(f"{flag}={_short(value)}" for flag, value in chosen.items())]
        yield NamedRun(" ".join(words), _options(f"{path}: runs[{index}]", flags | chosen))


def _short(value: object) -> str:
    """Shorten a value for a run's name: of a path, keep only the file's name."""
    return Path(value).stem if isinstance(value, str) and "/" in value else str(value)


def _options(where: str, values: Flags) -> TextRole:
    """Return the options of a run. Raises InvalidRequest with the place in the file."""
    role = str(values.get("role", "draft"))
    if role not in TEXT_ROLES:
        needed = f"one of {', '.join(TEXT_ROLES)} is needed{nearest(role, TEXT_ROLES)}"
        raise InvalidRequest(f"{where}.role {role}: {needed}")
    for name in NOT_IN_RUNS:
        if values.get(name):
            raise InvalidRequest(f"{where}.{name} has no meaning in a run")
    stated = {name: value for name, value in values.items() if value is not None}
    try:
        options = from_file(TEXT_ROLES[role], ValueSource(where + ".{}", stated))
        if "-" in (options.prompt, options.prompt_text):
            raise InvalidRequest("a run cannot be repeated with prompts of standard input")
        read_prompts(options)
    except InvalidRequest as error:
        words = str(error)
        raise InvalidRequest(words if words.startswith(where) else f"{where}: {words}") from error
    return options
