"""docs/flags.md, made from the groups: `python -m tests.support.flags_page > docs/flags.md`."""

from __future__ import annotations

from inference.flags.group import Flag
from outrider.options.parsing import TITLES, all_flags, roles_of
from outrider.options.verbs import ROLES

_HEAD = """# Flags

Made by `python -m tests.support.flags_page > docs/flags.md`. `outrider --help` says the
same.

A value stands on the command line, in the environment (`OUTRIDER_BATCH=8`) or in a YAML file
(`--config FILE` with lines such as `batch: 8`). The command line comes before the environment, that
before the file, that before the default. `-` and `_` are the same in a flag; `--no_NAME` turns a
switch off. A flag that does nothing in a role is refused there. `clients` are draft, chat, serve.

| role | what it does |
|---|---|
"""


def reference() -> str:
    lines = [f"| `{name}` | {model.__doc__} |" for name, model in ROLES.items()]
    flags = all_flags().values()
    for title in TITLES:
        lines += ["", f"## {title.capitalize()}", "", "| flag | value | roles | meaning |"]
        lines += ["|---|---|---|---|", *(_row(flag) for flag in flags if flag.title == title)]
    return _HEAD + "\n".join(lines) + "\n"


def _row(flag: Flag) -> str:
    roles = roles_of(flag.name)
    named = "all" if len(roles) in (0, len(ROLES)) else ", ".join(roles)
    named = named.replace("draft, chat, serve", "clients")
    spelt = " ".join(f"`{spelling}`" for spelling in flag.spellings)
    value = "" if flag.kind is bool else flag.metavar if flag.allowed == "text" else flag.allowed
    return f"| {spelt} | {value} | {named} | {flag.help} |"


if __name__ == "__main__":
    print(reference(), end="")
