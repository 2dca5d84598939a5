"""Role up: starts a model pair by its short name (a target process, an endpoint and its page); for
a remote target only the draft. Everything ends with this process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import webbrowser
from pathlib import Path
from typing import Any

from grpc_comm.transport import Address, check_free
from inference.command import say
from inference.errors import InvalidRequest
from inference.flags.group import flags_of
from inference.text.tokenizer_settings import TokenizerIdentity
from outrider.client.connecting import connect_target, full_description, tokenizer_identity
from outrider.doctor import machine as machine_words
from outrider.endpoint.run import serve_http
from outrider.models.catalog.models_here import (
    ModelHere,
    PublishedModel,
    count_words,
    fetch,
    find_models,
    judged,
    models_below,
    published_for,
)
from outrider.models.catalog.pairs import (
    EMBEDDED_PAIR,
    WITHOUT_LLAMA_CPP,
    M,
    MachineFacts,
    Model,
    choose_draft,
    choose_pair,
    is_called,
    listed,
    read_name,
    short_names,
    this_machine,
)
from outrider.models.loading import find_tokenizer
from outrider.models.machine import size_words
from outrider.options.groups import BatchOptions, DeviceOptions
from outrider.options.roles import EndpointRole, ServeRole, UpRole


def up(options: UpRole) -> int:
    """Start the pair, or the draft of a remote target, serve until a signal, and end. Returns 0."""
    for name in ("SIGTERM", "SIGHUP"):  # by default these would leave the target running
        if number := getattr(signal, name, None):
            signal.signal(number, signal.default_int_handler)
    if options.lists:
        print(*listed(this_machine()), sep="\n")
        print("outrider up NAME starts the pair; NAME:SIZE takes a target of this size")
        return 0
    pair = read_name(options.name) if options.name else ("", "")
    if options.http_port:
        check_free(Address(options.http_host, options.http_port))
    say(f"here: {machine_words()}")
    if options.elsewhere:
        return _serve(options, **_draft_flags(options, *pair, this_machine()))
    return _serve_pair(options, *pair)


def _serve(options: UpRole, **flags: Any) -> int:
    """Serve the endpoint and its page with these flags of role serve."""
    names = flags_of(EndpointRole).keys() - {"role"}
    values = {name: value for name, value in options.explicit().items() if name in names}
    return serve_http(ServeRole(**values | flags), _open_page)


def _open_page(address: str) -> None:
    """Print the page's address, and open it in a browser if this is a desktop session."""
    say(f"chat page: {address}")
    screen = sys.platform in ("darwin", "win32") or {"DISPLAY", "WAYLAND_DISPLAY"} & {*os.environ}
    if sys.stderr.isatty() and screen:
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()


# --- target and draft on this machine


def _serve_pair(options: UpRole, short: str, size: str) -> int:
    from outrider.target.spawn import started

    machine = this_machine()
    target, draft = _pair_flags(options, short, size, machine)
    if target and not machine.gpu and options.threads is None:
        drafting = max(1, machine.cores // 4)
        draft["threads"], target["threads"] = drafting, max(1, machine.cores - drafting)
    shared = [*flags_of(DeviceOptions), *flags_of(BatchOptions)]
    target |= {name: value for name, value in options.explicit().items() if name in shared}
    words = [word for name, value in target.items() for word in (f"--{name}", str(value))]
    say("starting the target")
    with started("target", words, say) as process:
        return _serve(options, target_host=process.address, **draft)


def _pair_flags(
    options: UpRole, short: str, size: str, machine: MachineFacts
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the flags that name the target's and the draft's model: models on this machine, else
    models that are downloaded. Raises InvalidRequest, naming what is missing.
    """
    if short == EMBEDDED_PAIR:
        say("target and draft: the bundled pair, which continues Python-like text")
        return {}, {}
    local = [model for model in _models_here(options) if not short or is_called(model.name, short)]
    usable = [model for model in local if not model.refusal]
    if pair := choose_pair(usable, machine, size):
        _tell_pair(pair, machine)
        return pair[0].as_flag("model"), pair[1].as_flag("draft_model")
    of_name = f" of {options.name}" if options.name else ""
    refused = "".join(f"; {model.name}: {model.refusal}" for model in local if model.refusal)
    if options.directory:
        raise InvalidRequest(
            f"--directory {options.directory}: a target and a draft of at most half of its "
            f"parameters, with one tokenizer, are needed{of_name}{refused}"
        )
    chosen = choose_pair(short_names()[short], machine, size)
    if chosen is None:
        raise InvalidRequest(
            f"no pair{of_name} fits the {size_words(machine.room)} that weights may take "
            f"here: outrider up lists what fits{refused}"
        )
    _tell_pair(chosen, machine)
    target = _fetched(chosen[0], None, chosen[1])
    tokenizer = find_tokenizer(target, "target").identity
    return {"model": target}, {"draft_model": _fetched(chosen[1], tokenizer)}


def _models_here(options: UpRole) -> list[ModelHere]:
    """Return the models in --directory; without it, the embedded pair and the hub's cache."""
    paths = [Path(path) for path in (options.directory or "").split(",") if path]
    return list(models_below(paths) if paths else find_models([]))


def _tell_pair(pair: tuple[M, M], machine: MachineFacts) -> None:
    """Print the chosen models, and why they were chosen."""
    target, draft = pair
    say(f"kind: {machine.reason}")
    say(f"target: {_model_words(target)}; the largest that is quick here")
    say(f"draft: {_model_words(draft)}; the smallest with the target's tokenizer")


def _model_words(model: Model) -> str:
    licence = "here already" if isinstance(model, ModelHere) else f"licence {model.licence}"
    return f"{model.name}, {count_words(model.parameters)}, {size_words(model.size)}, {licence}"


def _fetched(
    model: PublishedModel, tokenizer: TokenizerIdentity | None, *partners: PublishedModel
) -> str:
    """Download a model. Returns its name for --model. Raises InvalidRequest, and Mismatch if its
    tokenizer does not match.

    partners: models that will be downloaded after it
    """
    try:
        place = fetch(model, tokenizer)
    except InvalidRequest as error:
        needed = [f"{item.name} ({size_words(item.size)})" for item in (model, *partners)]
        raise InvalidRequest(
            f"the hub is needed for {' and '.join(needed)}: {error}; --directory DIR takes them "
            "from a disk"
        ) from error
    return str(place) if model.gguf else model.repository


# --- only the draft, for a remote target


def _draft_flags(options: UpRole, short: str, size: str, machine: MachineFacts) -> dict[str, Any]:
    """Return the flags of a draft for the target at --target_host: a model on this machine, else a
    download, else copied text. Raises InvalidRequest if the target serves another model.
    """
    with connect_target(options) as target:
        remote = full_description(target)
    tokenizer = tokenizer_identity(remote)
    say(f"target: {remote.model} on {remote.device}, at {options.addresses}")
    if short and not is_called(remote.model, short, size):
        raise InvalidRequest(f"the target serves {remote.model}, not {options.name}")
    local = [judged(model, remote) for model in _models_here(options)]
    if draft := choose_draft([model for model in local if not model.refusal], machine):
        say(f"draft: {_model_words(draft)}; the smallest with the target's tokenizer")
        return draft.as_flag("draft_model")
    published = [] if options.directory else published_for(remote.model, local)
    if chosen := choose_draft(published, machine):
        say(f"draft: {_model_words(chosen)}; the smallest of the target's family")
        return {"draft_model": _fetched(chosen, tokenizer)}
    same = [model for model in local if model.drafts_for(tokenizer)]
    tokenizers: list[dict[str, Any]] = [model.as_flag("model") for model in same]
    tokenizers += [{"model": model.tokenizer or model.repository} for model in published]
    if not tokenizers:
        raise InvalidRequest(
            f"no draft and no tokenizer is known for {remote.model}: outrider serve --model DIR"
        )
    say(f"draft: copied text alone, since no model can be computed here; {WITHOUT_LLAMA_CPP}")
    return {"draft": "copy,beside", **tokenizers[0]}
