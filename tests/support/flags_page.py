"""docs/flags.md, made from the groups: `python -m tests.support.flags_page > docs/flags.md`."""

from __future__ import annotations

from inference.flags.group import Flag
from outrider.options.commands import VERBS, all_flags, verbs_with
from outrider.options.roles import ROLES

TITLES = (
    "general",
    "models and devices",
    "text",
    "drafting",
    "prices and limits",
    "network",
    "security",
    "observing",
)
"""Titles of the groups, in the order of docs/flags.md."""

_HEAD = """# Flags

Made by `python -m tests.support.flags_page > docs/flags.md`. `outrider COMMAND --help-all` says the
same.

Set a value on the command line, in the environment (`OUTRIDER_BATCH=8`) or in a YAML file
(`--config FILE` with lines such as `batch: 8`). The first of these counts: command line,
environment, file, default. `-` and `_` are the same in a flag; `--no_NAME` turns a
switch off. A command rejects flags that it does not use. `clients` are run, chat and serve.

`python main.py --role draft` is `outrider run`; every other role has the name of its command.

| command | role | what it does |
|---|---|---|
"""


def reference() -> str:
    lines = [f"| `{verb}` | `{role}` | {ROLES[role].__doc__} |" for verb, role in VERBS.items()]
    flags = [flag for name, flag in all_flags().items() if name != "role"]
    for title in TITLES:
        lines += ["", f"## {title.capitalize()}", "", "| flag | value | commands | meaning |"]
        lines += ["|---|---|---|---|", *(_row(flag) for flag in flags if flag.title == title)]
    return _HEAD + "\n".join(lines) + "\n"


def _row(flag: Flag) -> str:
    verbs = verbs_with(flag.name)
    named = "all" if len(verbs) in (0, len(VERBS)) else ", ".join(verbs)
    named = named.replace("run, chat, serve", "clients")
    spelt = " ".join(f"`{spelling}`" for spelling in flag.spellings)
    value = "" if flag.kind is bool else flag.metavar if flag.allowed == "text" else flag.allowed
    return f"| {spelt} | {value} | {named} | {flag.help} |"


if __name__ == "__main__":
    print(reference(), end="")
