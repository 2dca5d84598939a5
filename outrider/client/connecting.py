"""Connects a client to the target that its flags name, and measures the link to it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from statistics import median
from threading import Event

from grpc_comm.client.channel import refuses
from grpc_comm.client.connection import CONNECT_SECONDS, Connection, connect
from grpc_comm.client.patience import Patience
from grpc_comm.translate import Description
from inference.command import say
from inference.errors import Mismatch, Unavailable
from inference.files.writing import cache_directory, write_whole
from inference.planner.profiling import Tell
from inference.text.tokenizer import Tokenizer
from inference.text.tokenizer_settings import TokenizerIdentity, TokenizerSettings
from inference.times import TRUSTED
from outrider.options.network import ConnectionOptions


@contextmanager
def connect_target(
    options: ConnectionOptions, given_up: Event | None = None
) -> Iterator[Connection]:
    """Connect to the target at --target_host and --port.

    A target that does not answer is retried for --patience seconds. Without the flag, a refused
    connection on this machine fails at once. The target may have to load a named model first.

    given_up: when set, ends the search
    """
    seconds = max(CONNECT_SECONDS, options.patience) if options.model_name else CONNECT_SECONDS
    check_listening(options)
    with ExitStack() as stack:
        yield stack.enter_context(
            connect(
                options.addresses,
                security=options.security,
                model=options.model_name or "",
                timeout=seconds,
                patience=Patience(options.patience, say, given_up or Event()),
            )
        )


def target_tokenizer(target: Connection, tokenizer: Tokenizer, name: str) -> Tokenizer:
    """Return the target's tokenizer: the vocabulary of a local one with the target's settings.

    So prompts and output follow the target's files, not the draft's. A target of an older version
    does not send its settings: its tokenizer has to equal the local one.

    name: the model from which the local tokenizer was read

    Raises Mismatch if token ids do not mean the same on both sides.
    """
    remote = target.description
    try:
        if remote.settings_digest == tokenizer.settings.digest:
            return tokenizer
        if not remote.settings_digest:
            if reason := tokenizer.identity.disagreement(tokenizer_identity(remote)):
                raise Mismatch(reason)
            return tokenizer
        return tokenizer.with_settings(_fetch_settings(target))
    except Mismatch as error:
        raise Mismatch(
            f"the tokenizers differ: {name} has {tokenizer.vocabulary} tokens, {remote.model} on "
            f"the target {remote.vocabulary} ({error}); take a draft of the target's own family"
        ) from error


def full_description(target: Connection) -> Description:
    """Return the target's description with the tokenizer settings, which are fetched unless they
    are cached. An older target has no settings.
    """
    description = target.description
    if not description.settings_digest:
        return description
    return replace(description, tokenizer_settings=_fetch_settings(target).content)


def tokenizer_identity(description: Description) -> TokenizerIdentity:
    """Return the identity of a target's tokenizer, read from the target's full description."""
    content = description.tokenizer_settings
    settings = TokenizerSettings.read(content) if content else None
    return TokenizerIdentity(description.tokenizer_fingerprint, settings)


def _fetch_settings(target: Connection) -> TokenizerSettings:
    """Return the settings of the target's tokenizer, fetched once and cached."""
    digest = target.description.settings_digest
    path = cache_directory("tokenizer_settings") / f"{digest}.json"
    with suppress(OSError):
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() == digest:
            return TokenizerSettings.read(content)
    content = target.tokenizer_settings()
    settings = TokenizerSettings.read(content)
    with suppress(OSError):  # without a cache they are fetched each time
        write_whole(path, content.decode())
    return settings


def check_listening(options: ConnectionOptions) -> None:
    """Raise Unavailable, with a remedy, if the target is on this machine and the connection is
    refused, unless the user set --patience.
    """
    if "patience" in options.explicit():
        return
    places = [endpoint.address for endpoint in options.endpoints]
    if not all(refuses(place) for place in places):
        return
    remedy = f"start it with `outrider target --port {places[0].port}`"
    if options.target:
        remedy = f"`outrider deploy status {options.target}` prints the command for its tunnel"
    raise Unavailable(
        f"no Outrider target answers at {options.addresses}: connection refused; {remedy}"
    )


PROBES, PROBE_SECONDS = 9, 1.0
"""Number of empty exchanges with the target. On a slow link, as many as fit into PROBE_SECONDS, but
at least TRUSTED.
"""


def measure_round_trip(probe: Callable[[], float], tell: Tell) -> float:
    """Return the median seconds of several consecutive empty exchanges with the target.

    tell: receives a note if exchanges take longer than PROBE_SECONDS
    """
    probes, noted = [probe()], False
    while len(probes) < PROBES:
        slow = sum(probes) + probes[-1] > PROBE_SECONDS
        if slow and len(probes) >= TRUSTED:
            break
        if slow and not noted:
            noted = True
            tell(
                "measuring the link to the target: an empty exchange takes "
                f"{probes[-1] * 1e3:.0f} ms"
            )
        probes.append(probe())
    return median(probes)
