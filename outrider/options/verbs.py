"""The commands by name: the roles of main.py, and the commands that are not roles."""

from __future__ import annotations

from collections.abc import Iterator

from outrider.options.roles import (
    ChatRole,
    DraftRole,
    FusedClientRole,
    FusedTargetRole,
    Role,
    ServeRole,
    TargetRole,
    UpRole,
    VerifyDraftRole,
    VerifyTargetRole,
)
from outrider.options.tool_roles import (
    DoctorRole,
    ListRole,
    MakeCertRole,
    MakeKeyRole,
    PullRole,
)

ROLES: dict[str, type[Role]] = {
    "target": TargetRole,
    "draft": DraftRole,
    "chat": ChatRole,
    "serve": ServeRole,
    "up": UpRole,
    "fused_target": FusedTargetRole,
    "fused_client": FusedClientRole,
    "verify_target": VerifyTargetRole,
    "verify_draft": VerifyDraftRole,
    "pull": PullRole,
    "list": ListRole,
    "doctor": DoctorRole,
    "cert": MakeCertRole,
    "keys": MakeKeyRole,
}
"""Every role by its name, the value of --role."""

OTHER_VERBS = {
    "demo": "race a draft against the target alone, with an emulated target",
    "compile": "build a target for Trainium, Inferentia or a CPU",
    "compare": "measure architectures side by side over an emulated link",
    "bench": "measure drafting methods on prompt sets",
    "recommend": "measure which draft suits a target and this machine",
    "prove": "check losslessness and speed on this device",
    "runs": "run the experiments and sweeps of a file",
    "deploy": "run targets on AWS: plan, start, inspect, remove, prices",
}
"""Commands that are not roles, and their help texts."""

GROUPS = {
    "Use": ("up", "run", "chat", "fused_client", "demo", "pull", "list", "doctor"),
    "Serve": ("target", "serve", "fused_target", "cert", "keys"),
    "Measure": ("recommend", "bench", "compare", "prove", "runs", "verify_target", "verify_draft"),
    "AWS": ("compile", "deploy"),
}
"""The commands in each group of the help."""


def verb_of(role: str) -> str:
    """Return the command of a role: the same name, except that draft is `run`."""
    return "run" if role == "draft" else role


VERBS = {verb_of(role): role for role in ROLES}
"""The role of each command that is a role."""


def overview() -> Iterator[str]:
    """Yield the lines of the help that is shown without a command."""
    yield "usage: outrider COMMAND [FLAG VALUE ...]"
    yield ""
    yield "A small draft model on this machine runs ahead of a large target model elsewhere. The"
    yield "text is exactly the target's own. The default is the pair that ships with Outrider."
    for title, verbs in GROUPS.items():
        yield ""
        yield f"{title}:"
        for verb in verbs:
            about = OTHER_VERBS.get(verb) or ROLES[VERBS[verb]].__doc__
            yield f"  {verb:15}{about}"
    yield ""
    yield "Examples:"
    yield "  outrider up qwen2.5-coder              download a pair and open its chat page"
    yield "  outrider target                        serve the target that ships with Outrider"
    yield '  outrider run "def main():" --baseline  generate with it, from another shell'
    yield ""
    yield "`outrider COMMAND --help` shows a command's common flags, `--help-all` all of them."
    yield "Flags may also be set in a YAML file (--config FILE) or in the environment"
    yield "(OUTRIDER_BATCH=8); --no_NAME turns a switch off."
