"""The roles by their names, the verbs that stand for them, and the verbs that are commands of their
own.
"""

from __future__ import annotations

from outrider.options.roles import (
    ChatRole,
    DoctorRole,
    DraftRole,
    FusedClientRole,
    FusedTargetRole,
    ListRole,
    MakeCertRole,
    MakeKeyRole,
    ProfilesRole,
    PullRole,
    Role,
    ServeRole,
    TargetRole,
    UpRole,
    VerifyDraftRole,
    VerifyTargetRole,
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
    "make-cert": MakeCertRole,
    "make-key": MakeKeyRole,
    "profiles": ProfilesRole,
}
"""Every role by its name."""

VERBS = {
    "up": "up",
    "target": "target",
    "serve": "serve",
    "chat": "chat",
    "run": "draft",
    "pull": "pull",
    "list": "list",
    "doctor": "doctor",
    "cert": "make-cert",
    "keys": "make-key",
}
"""Verbs of the installed command, and their roles. A role's own name is a verb, too."""

OTHER_VERBS = {
    "demo": "race a text with a draft against the target alone, with an emulated target",
    "compile": "build a target for a device: CPU, trn1, inf2, trn2, trn3",
    "compare": "measure architectures side by side",
    "bench": "measure ways of drafting on sets of prompts, and compare two such runs",
    "recommend": "measure which draft suits this machine and a target",
    "prove": "equality, times and the promise on this machine's device, in one report",
    "runs": "make the runs and sweeps of a file, and keep what came of each",
    "deploy": "targets on AWS: plan, up, status, logs, tunnel, down, and what they cost",
}
"""Verbs that are commands of their own, with their help."""
